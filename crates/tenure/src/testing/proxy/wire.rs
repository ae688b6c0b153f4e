//! The protocol of PostgreSQL, as far as a proxy has to know it: where messages begin and end, and what a few of them mean.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::rules::Rejection;

pub(super) const CANCEL_REQUEST: u32 = 80_877_102;
pub(super) const SSL_REQUEST: u32 = 80_877_103;
pub(super) const GSS_REQUEST: u32 = 80_877_104;

/// The first packets of a connection have no type byte: length and code.
pub(super) async fn startup_packet(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> std::io::Result<BytesMut> {
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

/// The code of such a packet.
pub(super) fn startup_code(packet: &[u8]) -> u32 {
    u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]])
}

/// An ErrorResponse as a server sends it instead of a greeting.
pub(super) fn rejection(rejection: Rejection) -> Vec<u8> {
    let mut fields = Vec::new();
    for (field, text) in [(b'S', "FATAL"), (b'V', "FATAL"), (b'C', rejection.sqlstate), (b'M', rejection.message)] {
        fields.push(field);
        fields.extend_from_slice(text.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    let length = u32::try_from(fields.len() + 4).expect("a short text");
    let mut message = vec![b'E'];
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&fields);
    message
}

/// # Errors
/// Those of the connection; its end is one.
pub(super) async fn read_more(from: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> std::io::Result<()> {
    if from.read_buf(buffer).await? == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Length of the first whole message in the buffer: a type byte, then a length that counts itself.
pub(super) fn message_length(buffer: &[u8]) -> Option<usize> {
    let head = buffer.get(1..5)?;
    let length = 1 + u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    (buffer.len() >= length).then_some(length)
}

/// A simple query, or the execution of a prepared statement; of messages to the server.
pub(super) fn is_statement(message: &[u8]) -> bool {
    matches!(message[0], b'Q' | b'E')
}

/// "Ready for query"; of messages from the server.
pub(super) fn is_ready(message: &[u8]) -> bool {
    message[0] == b'Z'
}

/// "COMMIT is done"; of messages from the server.
pub(super) fn is_commit_answer(message: &[u8]) -> bool {
    message[0] == b'C' && message[5..].starts_with(b"COMMIT")
}
