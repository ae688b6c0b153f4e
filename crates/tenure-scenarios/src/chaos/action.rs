//! What chaos does, drawn from a seed.

use std::time::Duration;

use tenure::testing::{Cut, Fault, Rejection};

/// One thing that goes wrong. Workers and producers are named by their place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// kill -9, and a new process after this time.
    Kill(usize, Duration),
    /// SIGSTOP, and SIGCONT after this time.
    Freeze(usize, Duration),
    /// SIGTERM, and a new process when it has ended.
    Stop(usize),
    /// kill -9 of a producer; another one takes its place.
    KillProducer(usize),
    /// Every process of the server at once, as `pg_ctl stop -m immediate`; or in order.
    Restart { immediate: bool },
    /// kill -9 of one backend.
    CrashBackend,
    /// `pg_terminate_backend` of the connections of one worker.
    Terminate(usize),
    /// `pg_terminate_backend` of everybody.
    TerminateAll,
    /// All connections of one worker are cut.
    CutAll(usize),
    /// The connection that comes to this point is cut.
    CutAt(usize, Cut),
    /// The connection of a producer that comes to this point is cut.
    CutProducer(usize, Cut),
    /// The network of one worker does this for a while.
    Network(usize, Fault, Duration),
}

/// Kinds of action with their weights.
const WEIGHTS: [(Kind, u32); 12] = [
    (Kind::Kill, 14),
    (Kind::Freeze, 10),
    (Kind::Stop, 6),
    (Kind::KillProducer, 5),
    (Kind::Restart, 5),
    (Kind::CrashBackend, 2),
    (Kind::Terminate, 8),
    (Kind::TerminateAll, 4),
    (Kind::CutAll, 8),
    (Kind::CutAt, 20),
    (Kind::CutProducer, 12),
    (Kind::Network, 18),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Kill,
    Freeze,
    Stop,
    KillProducer,
    Restart,
    CrashBackend,
    Terminate,
    TerminateAll,
    CutAll,
    CutAt,
    CutProducer,
    Network,
}

/// A sequence of actions that is the same for the same seed.
#[derive(Debug)]
pub struct Script {
    random: fastrand::Rng,
    workers: usize,
    producers: usize,
}

impl Script {
    /// The actions of this seed.
    pub fn new(seed: u64, workers: usize, producers: usize) -> Script {
        Script { random: fastrand::Rng::with_seed(seed), workers, producers }
    }

    /// Draws the next action, and the pause before it.
    pub fn draw(&mut self) -> (Duration, Action) {
        let pause = self.millis(200, 1_800);
        let worker = self.random.usize(..self.workers);
        let action = match self.kind() {
            Kind::Kill => Action::Kill(worker, self.millis(0, 3_000)),
            Kind::Freeze => Action::Freeze(worker, self.millis(300, 9_000)),
            Kind::Stop => Action::Stop(worker),
            Kind::KillProducer => Action::KillProducer(self.random.usize(..self.producers)),
            Kind::Restart => Action::Restart { immediate: self.random.bool() },
            Kind::CrashBackend => Action::CrashBackend,
            Kind::Terminate => Action::Terminate(worker),
            Kind::TerminateAll => Action::TerminateAll,
            Kind::CutAll => Action::CutAll(worker),
            Kind::CutAt => Action::CutAt(worker, self.cut()),
            Kind::CutProducer => {
                let n = self.random.u64(1..10);
                let cut = if self.random.bool() { Cut::CommitAnswer(n / 3 + 1) } else { Cut::Answer(n) };
                Action::CutProducer(self.random.usize(..self.producers), cut)
            }
            Kind::Network => Action::Network(worker, self.fault(), self.millis(200, 6_000)),
        };
        (pause, action)
    }

    fn kind(&mut self) -> Kind {
        let all: u32 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut left = self.random.u32(..all);
        for (kind, weight) in WEIGHTS {
            if left < weight {
                return kind;
            }
            left -= weight;
        }
        unreachable!("a number below the sum of all weights")
    }

    fn cut(&mut self) -> Cut {
        let n = self.random.u64(1..60);
        match self.random.u8(..5) {
            0 => Cut::ToServer(n),
            1 => Cut::FromServer(n),
            2 => Cut::Statement(n / 8 + 1),
            _ => Cut::Answer(n / 8 + 1),
        }
    }

    fn fault(&mut self) -> Fault {
        match self.random.u8(..7) {
            0 | 1 => Fault::Stall,
            2 => Fault::BlackHole,
            3 => Fault::LoseAnswers,
            4 => Fault::Refuse,
            5 => Fault::Reject(Rejection::TOO_MANY),
            _ => Fault::Delay(self.millis(10, 200)),
        }
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.u64(from..to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_says_the_same() {
        let actions = |seed| {
            let mut script = Script::new(seed, 4, 2);
            (0..500).map(|_| script.draw()).collect::<Vec<_>>()
        };
        assert_eq!(actions(7), actions(7));
        assert_ne!(actions(7), actions(8));
    }
}
