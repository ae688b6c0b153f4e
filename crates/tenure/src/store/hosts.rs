//! Several hosts in one address: the first that takes writes is the one.
//!
//! tokio-postgres asks one after the other, and waits for one that has died without a word until it gives up altogether.
//! Here the next one is asked after a quarter of a second, and those that have refused are asked again as long as another
//! one has not answered: the moment in which a standby becomes the primary is not missed. The one that answered last is
//! asked first, so that a former primary that is silent costs nothing when a connection is made again.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};

use super::address;
use super::failure::{Loss, LossKind, StoreError};

/// After so long without an answer the next host is asked as well: what RFC 8305 recommends between two addresses. A
/// worker that lost its connections has 0.8 of its grace, which is a second as a rule, to find another host.
const PATIENCE: Duration = Duration::from_millis(250);
/// What a connection may take once the right host is asked, at least.
const CONNECT_MIN: Duration = Duration::from_secs(1);
/// A host that has not answered for so long is asked once more. What was sent while the network was away is lost, and the
/// answer with it; what is sent after that arrives.
const ASK_AGAIN: Duration = Duration::from_millis(1500);
/// From then on it is asked every three seconds: a server that is only slow, or stalls, keeps what it was asked in vain.
const ASK_AGAIN_LATER: Duration = Duration::from_secs(3);

/// The place of the host that answered last, known to all that connect by the same address.
pub(super) struct Answered(AtomicUsize);

impl Answered {
    pub(super) fn none() -> Answered {
        Answered(AtomicUsize::new(usize::MAX))
    }

    /// The host at that place answered and takes no writes: the one behind it is asked first, unless another session has said
    /// so already. Behind a pooler nothing else tells.
    pub(super) fn pass_over(&self, place: usize, config: &Config) {
        let hosts = each(config).len();
        if place < hosts {
            let _ = self.0.compare_exchange(place, (place + 1) % hosts, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The least time in which a connection can come about although all hosts but one are silent.
pub(super) fn connect_min(config: &Config) -> Duration {
    let others = config.get_hosts().len().max(config.get_hostaddrs().len()).saturating_sub(1);
    CONNECT_MIN + PATIENCE * u32::try_from(others).unwrap_or(u32::MAX)
}

/// A connection, and the place of its host.
pub(super) struct Connected<S> {
    pub(super) client: Client,
    pub(super) connection: Connection<Socket, S>,
    pub(super) place: usize,
}

/// Connects to the host of the configuration, or to the first of several that is as wanted. Ends with an error when all
/// have refused; one that does not answer is waited for, so the caller sets a limit.
pub(super) async fn connect<T>(config: &Config, tls: T, answered: &Answered) -> Result<Connected<T::Stream>, StoreError>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let hosts = each(config);
    if hosts.len() < 2 {
        let (client, connection) = ask_patiently(config, tls).await?;
        return Ok(Connected { client, connection, place: 0 });
    }
    let ask = |n: usize| {
        let (host, tls) = (hosts[n].clone(), tls.clone());
        async move { (n, ask_patiently(&host, tls).await) }
    };
    let shuffled = config.get_load_balance_hosts() == LoadBalanceHosts::Random;
    // Whoever wants them shuffled does not want the same one again.
    let first = if shuffled { usize::MAX } else { answered.0.load(Ordering::Relaxed) };
    let mut line = line_of(hosts.len(), shuffled, first);
    let mut refusals: Vec<Option<StoreError>> = vec![None; hosts.len()];
    let mut asked = FuturesUnordered::new();
    asked.extend(line.pop_front().map(ask));
    loop {
        tokio::select! {
            Some((n, answer)) = asked.next() => match answer {
                Ok((client, connection)) => {
                    answered.0.store(n, Ordering::Relaxed);
                    return Ok(Connected { client, connection, place: n });
                }
                Err(error) => {
                    refusals[n] = Some(error.into());
                    line.push_back(n);
                    if asked.is_empty() && refusals.iter().all(Option::is_some) {
                        return Err(in_all(&hosts, refusals.into_iter().flatten().collect()));
                    }
                    // Those that were not asked yet stand in front of those that have refused.
                    if line.front().is_some_and(|next| refusals[*next].is_none()) {
                        asked.extend(line.pop_front().map(ask));
                    }
                }
            },
            // sleep: one that does not answer gives no signal.
            () = tokio::time::sleep(PATIENCE), if !line.is_empty() => asked.extend(line.pop_front().map(ask)),
        }
    }
}

/// One host, asked again and again as long as it does not answer. The first question stays: a slow server gets to it.
async fn ask_patiently<T>(
    host: &Config,
    tls: T,
) -> Result<(Client, Connection<Socket, T::Stream>), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let mut first = pin!(host.connect(tls.clone()));
    // sleep: one that does not answer gives no signal.
    if let Ok(answer) = tokio::time::timeout(ASK_AGAIN, &mut first).await {
        return answer;
    }
    loop {
        tokio::select! {
            answer = &mut first => return answer,
            answer = host.connect(tls.clone()) => match answer {
                // The first question may be what takes the last place.
                Err(error) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
                    if let Ok(answer) = tokio::time::timeout(ASK_AGAIN_LATER, &mut first).await {
                        return answer;
                    }
                }
                answer => return answer,
            },
            () = tokio::time::sleep(ASK_AGAIN_LATER) => {}
        }
    }
}

/// The order in which so many hosts are asked: `first` is the place of one, or none.
fn line_of(hosts: usize, shuffled: bool, first: usize) -> VecDeque<usize> {
    let mut line: Vec<usize> = (0..hosts).collect();
    if shuffled {
        fastrand::shuffle(&mut line);
    }
    line.sort_by_key(|n| *n != first);
    line.into()
}

/// The configuration for each of its hosts alone.
fn each(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    let fits = |given: usize| given == 0 || given == count;
    if !fits(hosts.len()) || !fits(addresses.len()) || ports.len() > 1 && ports.len() != count {
        return Vec::new(); // what does not fit together is refused, with its reason, where it is used
    }
    let one = |n: usize| {
        let mut one = without_hosts(config);
        match hosts.get(n) {
            Some(Host::Tcp(name)) => one.host(name),
            #[cfg(unix)]
            Some(Host::Unix(path)) => one.host_path(path),
            None => &mut one,
        };
        if let Some(address) = addresses.get(n) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(n).or(ports.first()) {
            one.port(*port);
        }
        one
    };
    (0..count).map(one).collect()
}

fn without_hosts(config: &Config) -> Config {
    let mut bare = Config::new();
    bare.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    if let Some(user) = config.get_user() {
        bare.user(user);
    }
    if let Some(password) = config.get_password() {
        bare.password(password);
    }
    if let Some(name) = config.get_dbname() {
        bare.dbname(name);
    }
    if let Some(options) = config.get_options() {
        bare.options(options);
    }
    if let Some(name) = config.get_application_name() {
        bare.application_name(name);
    }
    if let Some(time) = config.get_connect_timeout() {
        bare.connect_timeout(*time);
    }
    if let Some(time) = config.get_tcp_user_timeout() {
        bare.tcp_user_timeout(*time);
    }
    if let Some(time) = config.get_keepalives_interval() {
        bare.keepalives_interval(time);
    }
    if let Some(times) = config.get_keepalives_retries() {
        bare.keepalives_retries(times);
    }
    bare
}

/// What all hosts said together. Nobody can reach the database only if nobody can reach any of them: a standby that
/// allows no writes says nothing of a primary that does not answer.
fn in_all(hosts: &[Config], refusals: Vec<StoreError>) -> StoreError {
    let mut losses = Vec::new();
    for refusal in refusals {
        match refusal {
            StoreError::Lost(loss) => losses.push(loss),
            // A wrong password, or a database that is not there: more than that another host is away.
            other => return other,
        }
    }
    let refused = losses.iter().all(|loss| loss.refused || loss.announced);
    let announced = refused && losses.iter().any(|loss| loss.announced);
    let any = |kind| losses.iter().any(|loss| loss.kind == kind);
    let kind = match () {
        () if any(LossKind::Tls) => LossKind::Tls,
        () if any(LossKind::Away) => LossKind::Away,
        () => LossKind::ReadOnly,
    };
    let texts: Vec<String> =
        hosts.iter().zip(&losses).map(|(host, loss)| format!("{}: {}", address::shown(host), loss.text)).collect();
    StoreError::Lost(Loss { kind, announced, refused, text: texts.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Config {
        text.parse().expect("an address")
    }

    #[test]
    fn each_host_keeps_its_port_and_everything_else() {
        let check = |text: &str, expected: &[&str]| {
            let each: Vec<String> = each(&read(text)).iter().map(address::shown).collect();
            assert_eq!(each, expected, "{text}");
        };
        check("postgres://me@a/x", &["me@a:5432/x"]);
        check("postgres://me@a:1,b:2/x", &["me@a:1/x", "me@b:2/x"]);
        check("host=a,b port=7 user=me dbname=x", &["me@a:7/x", "me@b:7/x"]);
        check("hostaddr=127.0.0.1,127.0.0.2 port=1,2", &["127.0.0.1:1", "127.0.0.2:2"]);
        check("host=a,b,c port=1,2", &[]);
        let text = "postgres://me:secret@a,b/x?application_name=n&options=-cjit%3Doff&connect_timeout=3&sslmode=require\
                    &target_session_attrs=read-write&keepalives_retries=4&keepalives_idle=9&keepalives_interval=2&tcp_user_timeout=5\
                    &channel_binding=disable&load_balance_hosts=disable&keepalives=0";
        // Everything that is set appears in it but the password.
        let alone = read(&text.replace("a,b", "b"));
        assert_eq!(format!("{:?}", each(&read(text))[1]), format!("{alone:?}"));
        assert_eq!(each(&read(text))[1].get_password(), Some(&b"secret"[..]));
    }

    #[test]
    fn the_host_that_answered_last_is_asked_first() {
        assert_eq!(line_of(3, false, usize::MAX), [0, 1, 2]);
        assert_eq!(line_of(3, false, 2), [2, 0, 1]);
        for _ in 0..20 {
            let line = line_of(5, true, 3);
            assert_eq!((line[0], line.len()), (3, 5));
        }
    }

    #[test]
    fn silent_hosts_leave_time_for_the_one_that_answers() {
        assert_eq!(connect_min(&read("postgres://a/x")), CONNECT_MIN);
        assert_eq!(connect_min(&read("postgres://a,b,c/x")), CONNECT_MIN + 2 * PATIENCE);
        assert_eq!(connect_min(&read("hostaddr=127.0.0.1,127.0.0.2")), CONNECT_MIN + PATIENCE);
    }

    #[test]
    fn nobody_is_reached_only_if_no_host_is() {
        let hosts = each(&read("postgres://a,b"));
        let lost = |announced, refused| StoreError::Lost(Loss { announced, refused, ..Loss::silent("x") });
        let check = |first, second, expected: (bool, bool)| match in_all(&hosts, vec![first, second]) {
            StoreError::Lost(loss) => assert_eq!((loss.announced, loss.refused), expected, "{}", loss.text),
            other => panic!("{other}"),
        };
        check(lost(false, true), lost(false, true), (false, true));
        check(lost(true, false), lost(false, true), (true, true));
        check(lost(false, false), lost(false, true), (false, false));
        check(lost(true, false), lost(false, false), (false, false));
        let wrong = StoreError::Protocol("wrong".into());
        assert!(!in_all(&hosts, vec![lost(false, true), wrong]).is_lost());
    }

    #[test]
    fn an_address_is_read_only_only_if_every_host_is() {
        use LossKind::{Away, ReadOnly, Tls};
        let hosts = each(&read("postgres://a,b"));
        let check = |first, second, expected| {
            let lost = |kind| StoreError::Lost(Loss { kind, ..Loss::silent("x") });
            match in_all(&hosts, vec![lost(first), lost(second)]) {
                StoreError::Lost(loss) => assert_eq!(loss.kind, expected, "{first:?}, {second:?}"),
                other => panic!("{other}"),
            }
        };
        check(ReadOnly, ReadOnly, ReadOnly);
        check(Away, ReadOnly, Away);
        check(ReadOnly, Away, Away);
        check(Tls, ReadOnly, Tls);
        check(Away, Tls, Tls);
    }
}
