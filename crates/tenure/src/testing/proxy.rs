//! A TCP proxy in front of PostgreSQL that fails on request. It knows the protocol's message boundaries, so that it can
//! cut at an exact message. Without TLS: it answers the client's request for TLS with "no".

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::config::Host;

/// What the proxy does to every connection, those that are open included, until told otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Forwards everything.
    None,
    /// Closes new connections at once; open ones go on.
    Refuse,
    /// Holds every message, both ways, without closing anything; what was held goes on afterwards.
    Stall,
    /// Reads and throws away every message, both ways, without closing anything.
    BlackHole,
    /// Each message waits this long, each way.
    Delay(Duration),
}

/// Where the proxy cuts one connection. Numbers count from 1, over all connections, from the call of [`Proxy::cut_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Before the n-th message to the server is forwarded.
    ToServer(u64),
    /// Before the n-th message from the server is forwarded.
    FromServer(u64),
    /// Before the n-th statement (a simple query, or the execution of a prepared one) is forwarded.
    Statement(u64),
    /// Before the n-th "ready for query" is forwarded: the server has done, and committed, what the client will not hear of.
    Answer(u64),
    /// Before the answer to the n-th COMMIT is forwarded: committed, and the client does not know.
    CommitAnswer(u64),
}

const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// A running proxy; it stops, and closes every connection, when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    url: String,
    rules: Arc<Rules>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Rules {
    fault: watch::Sender<Fault>,
    /// Counts up to close every connection that is open now.
    generation: watch::Sender<u64>,
    cut: Mutex<Option<(Cut, u64)>>,
    cuts: AtomicU64,
    open: AtomicUsize,
}

impl Proxy {
    /// Starts a proxy on a free local port in front of the server of `url` (its first host).
    ///
    /// # Panics
    /// When `url` is not a connection URL or no port can be opened.
    pub async fn start(url: &str) -> Proxy {
        let config: tokio_postgres::Config = url.parse().unwrap_or_else(|e| panic!("not a connection URL: {url}: {e}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a local port");
        let address = listener.local_addr().expect("the port's address");
        let rules = Arc::new(Rules {
            fault: watch::Sender::new(Fault::None),
            generation: watch::Sender::new(0),
            cut: Mutex::new(None),
            cuts: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, config.clone(), rules.clone()));
        Proxy { address, url: through(&config, address), rules, accepting }
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

    /// Cuts the connection that reaches this point, once. A new call replaces one that was not reached.
    pub fn cut_at(&self, cut: Cut) {
        *self.rules.cut.lock().expect("not poisoned") = Some((cut, 0));
    }

    /// How many connections [`Proxy::cut_at`] has cut so far.
    pub fn cuts(&self) -> u64 {
        self.rules.cuts.load(Ordering::SeqCst)
    }

    /// Closes every open connection now, as a network that goes away.
    pub fn cut_all(&self) {
        self.rules.generation.send_modify(|n| *n += 1);
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

async fn accept(listener: TcpListener, config: tokio_postgres::Config, rules: Arc<Rules>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        if *rules.fault.borrow() != Fault::Refuse {
            connections.spawn(serve(client, config.clone(), rules.clone()));
        }
    }
}

async fn serve(client: TcpStream, config: tokio_postgres::Config, rules: Arc<Rules>) {
    let mut generation = rules.generation.subscribe();
    generation.mark_unchanged();
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
        let startup = startup_packet(&mut client_in, &mut buffer).await?;
        match u32::from_be_bytes([startup[4], startup[5], startup[6], startup[7]]) {
            SSL_REQUEST | GSS_REQUEST => client_out.write_all(b"N").await?,
            CANCEL_REQUEST => return to.write_all(&startup).await,
            _ => {
                rules.let_pass().await;
                to.write_all(&startup).await?;
                break;
            }
        }
    }
    let up = forward(&mut client_in, &mut to, buffer, rules, is_point_to_server);
    let down = forward(&mut from, &mut client_out, BytesMut::new(), rules, is_point_from_server);
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// The first packets of a connection have no type byte: length and code.
async fn startup_packet(from: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> std::io::Result<BytesMut> {
    loop {
        if buffer.len() >= 8 {
            let length = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize;
            if buffer.len() >= length.max(8) {
                return Ok(buffer.split_to(length.max(8)));
            }
        }
        read_more(from, buffer).await?;
    }
}

async fn forward(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut buffer: BytesMut,
    rules: &Rules,
    is_point: fn(Cut, &[u8]) -> bool,
) -> std::io::Result<()> {
    let mut whole = BytesMut::new();
    loop {
        // Everything that is here goes out in one write, unless the cut lies in between.
        while let Some(length) = message_length(&buffer) {
            let message = &buffer[..length];
            if rules.cuts_here(|cut| is_point(cut, message)) {
                to.write_all(&whole).await?;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            whole.extend_from_slice(message);
            buffer.advance(length);
        }
        if !whole.is_empty() {
            if rules.let_pass().await {
                to.write_all(&whole).await?;
            }
            whole.clear();
        }
        read_more(from, &mut buffer).await?;
    }
}

async fn read_more(from: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> std::io::Result<()> {
    if from.read_buf(buffer).await? == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Length of the first whole message in the buffer: a type byte, then a length that counts itself.
fn message_length(buffer: &[u8]) -> Option<usize> {
    let head = buffer.get(1..5)?;
    let length = 1 + u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    (buffer.len() >= length).then_some(length)
}

fn is_point_to_server(cut: Cut, message: &[u8]) -> bool {
    match cut {
        Cut::ToServer(_) => true,
        Cut::Statement(_) => matches!(message[0], b'Q' | b'E'),
        Cut::FromServer(_) | Cut::Answer(_) | Cut::CommitAnswer(_) => false,
    }
}

fn is_point_from_server(cut: Cut, message: &[u8]) -> bool {
    match cut {
        Cut::FromServer(_) => true,
        Cut::Answer(_) => message[0] == b'Z',
        Cut::CommitAnswer(_) => message[0] == b'C' && message[5..].starts_with(b"COMMIT"),
        Cut::ToServer(_) | Cut::Statement(_) => false,
    }
}

impl Rules {
    /// Counts this message if it is of the kind that the cut counts; true when it is the one.
    fn cuts_here(&self, is_point: impl Fn(Cut) -> bool) -> bool {
        let mut armed = self.cut.lock().expect("not poisoned");
        let Some((cut, seen)) = armed.as_mut() else { return false };
        let (Cut::ToServer(at) | Cut::FromServer(at) | Cut::Statement(at) | Cut::Answer(at) | Cut::CommitAnswer(at)) =
            *cut;
        if !is_point(*cut) {
            return false;
        }
        *seen += 1;
        if *seen < at {
            return false;
        }
        *armed = None;
        self.cuts.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Waits as the fault of the moment says; false when the message is to be thrown away.
    async fn let_pass(&self) -> bool {
        let mut fault = self.fault.subscribe();
        let now = *fault.borrow_and_update();
        match now {
            Fault::None | Fault::Refuse => true,
            Fault::BlackHole => false,
            Fault::Delay(time) => {
                tokio::time::sleep(time).await;
                true
            }
            Fault::Stall => {
                // The sender lives as long as the rules.
                let _ = fault.wait_for(|fault| *fault != Fault::Stall).await;
                true
            }
        }
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
