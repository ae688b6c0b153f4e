//! A TCP proxy in front of PostgreSQL that fails on request. It knows the protocol's message boundaries, so that it can
//! cut at an exact message. Without TLS: it answers the client's request for TLS with "no".

mod rules;
mod wire;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_postgres::config::Host;

pub use rules::{Cut, Fault, Rejection};
use rules::{Rules, Way};

/// A running proxy; it stops, and closes every connection, when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    url: String,
    target: Arc<Mutex<tokio_postgres::Config>>,
    rules: Arc<Rules>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on a free local port in front of the server of `url` (its first host).
    ///
    /// # Panics
    /// When `url` is not a connection URL or no port can be opened.
    pub async fn start(url: &str) -> Proxy {
        let config = config_of(url);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a local port");
        let address = listener.local_addr().expect("the port's address");
        let rules = Arc::new(Rules::default());
        let url = through(&config, address);
        let target = Arc::new(Mutex::new(config));
        let accepting = tokio::spawn(accept(listener, target.clone(), rules.clone()));
        Proxy { address, url, target, rules, accepting }
    }

    /// The URL of the same database through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, do this to every connection.
    pub fn set(&self, fault: Fault) {
        self.rules.fault.send_replace(fault);
    }

    /// New connections go to the server of this URL (its first host); those that are open stay where they are.
    ///
    /// # Panics
    /// When `url` is not a connection URL.
    pub fn move_to(&self, url: &str) {
        *self.target.lock().expect("not poisoned") = config_of(url);
    }

    /// Cuts the connection that reaches this point, once. A new call replaces one that was not reached.
    pub fn cut_at(&self, cut: Cut) {
        self.rules.arm(Some(cut), false);
    }

    /// At this point every connection is closed, and new ones are refused ([`Fault::Refuse`]) until told otherwise: the
    /// client is gone for good, as far as the server can tell.
    pub fn cut_off_at(&self, cut: Cut) {
        self.rules.arm(Some(cut), true);
    }

    /// Forgets a cut that has not been reached.
    pub fn disarm(&self) {
        self.rules.arm(None, false);
    }

    /// How many connections [`Proxy::cut_at`] and [`Proxy::cut_off_at`] have cut so far.
    pub fn cuts(&self) -> u64 {
        self.rules.cuts()
    }

    /// Messages so far: to the server, and from it. Those of a connection's very beginning, before the server has
    /// answered, are not counted.
    pub fn messages(&self) -> (u64, u64) {
        self.rules.messages()
    }

    /// Closes every open connection now, as a network that goes away.
    pub fn cut_all(&self) {
        self.rules.close_all();
    }

    /// Connections that are open through the proxy.
    pub fn connections(&self) -> usize {
        self.rules.open.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn config_of(url: &str) -> tokio_postgres::Config {
    url.parse().unwrap_or_else(|e| panic!("not a connection URL: {url}: {e}"))
}

/// The same user, password and database at another address.
fn through(config: &tokio_postgres::Config, address: SocketAddr) -> String {
    let user = config.get_user().unwrap_or("postgres");
    let password = config.get_password().map(|p| format!(":{}", escape(p))).unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    format!(
        "postgres://{}{password}@{address}/{}?sslmode=disable",
        escape(user.as_bytes()),
        escape(database.as_bytes())
    )
}

fn escape(text: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.iter().map(|&b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}

async fn accept(listener: TcpListener, target: Arc<Mutex<tokio_postgres::Config>>, rules: Arc<Rules>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let config = target.lock().expect("not poisoned").clone();
        let fault = *rules.fault.borrow();
        match fault {
            Fault::Refuse => drop(client),
            Fault::Reject(rejection) => drop(connections.spawn(reject(client, rejection))),
            Fault::None | Fault::Stall | Fault::BlackHole | Fault::LoseAnswers | Fault::Delay(_) => {
                connections.spawn(serve(client, config, rules.clone()));
            }
        }
    }
}

/// Hears the client out and tells it no.
async fn reject(mut client: TcpStream, rejection: Rejection) {
    let told = async {
        let mut buffer = BytesMut::new();
        loop {
            let packet = wire::startup_packet(&mut client, &mut buffer).await?;
            match wire::startup_code(&packet) {
                wire::SSL_REQUEST | wire::GSS_REQUEST => client.write_all(b"N").await?,
                _ => break,
            }
        }
        client.write_all(&wire::rejection(rejection)).await?;
        client.shutdown().await
    };
    let _: std::io::Result<()> = told.await;
}

async fn serve(client: TcpStream, config: tokio_postgres::Config, rules: Arc<Rules>) {
    let mut generation = rules.generation.subscribe();
    generation.mark_unchanged();
    // Accepted in the instant in which everything was cut off.
    if *rules.fault.borrow() == Fault::Refuse {
        return;
    }
    let _open = Open::count(&rules.open);
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let both_ways = async {
        match config.get_hosts().first() {
            #[cfg(unix)]
            Some(Host::Unix(folder)) => {
                let path = folder.join(format!(".s.PGSQL.{port}"));
                let server = tokio::net::UnixStream::connect(path).await?;
                let (from, to) = server.into_split();
                pump(client, from, to, &rules).await
            }
            Some(Host::Tcp(host)) => {
                let server = TcpStream::connect((host.as_str(), port)).await?;
                server.set_nodelay(true)?;
                let (from, to) = server.into_split();
                pump(client, from, to, &rules).await
            }
            None => Err(std::io::ErrorKind::AddrNotAvailable.into()),
        }
    };
    tokio::select! {
        _ = both_ways => {}
        _ = generation.changed() => {}
    }
}

/// Forwards both ways until one side ends; dropping the streams closes the other.
async fn pump<R, W>(client: TcpStream, mut from: R, mut to: W, rules: &Rules) -> std::io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    client.set_nodelay(true)?;
    let (mut client_in, mut client_out) = client.into_split();
    let mut buffer = BytesMut::new();
    loop {
        let startup = wire::startup_packet(&mut client_in, &mut buffer).await?;
        match wire::startup_code(&startup) {
            wire::SSL_REQUEST | wire::GSS_REQUEST => client_out.write_all(b"N").await?,
            wire::CANCEL_REQUEST => return to.write_all(&startup).await,
            _ => {
                rules.let_pass(Way::ToServer).await;
                to.write_all(&startup).await?;
                break;
            }
        }
    }
    let up = forward(&mut client_in, &mut to, buffer, rules, Way::ToServer);
    let down = forward(&mut from, &mut client_out, BytesMut::new(), rules, Way::FromServer);
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

async fn forward(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut buffer: BytesMut,
    rules: &Rules,
    way: Way,
) -> std::io::Result<()> {
    let mut whole = BytesMut::new();
    loop {
        // Everything that is here goes out in one write, unless the cut lies in between.
        while let Some(length) = wire::message_length(&buffer) {
            let message = &buffer[..length];
            if rules.cuts_here(way, message) {
                to.write_all(&whole).await?;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            whole.extend_from_slice(message);
            buffer.advance(length);
        }
        if !whole.is_empty() {
            if rules.let_pass(way).await {
                to.write_all(&whole).await?;
            }
            whole.clear();
        }
        wire::read_more(from, &mut buffer).await?;
    }
}

struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn count(open: &'a AtomicUsize) -> Self {
        open.fetch_add(1, Ordering::SeqCst);
        Open(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
