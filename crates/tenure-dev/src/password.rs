//! The password of a cluster: random, and stored in the server as one round of SCRAM-SHA-256 (RFC 5802, RFC 7677).

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

/// Rounds of hashing: see the crate's documentation for why one is enough.
const ROUNDS: u32 = 1;

/// `bytes` random bytes as lower-case hexadecimal digits.
pub(crate) fn random_hex(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).context("cannot read /dev/urandom")?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What `alter role … password` takes instead of the password itself: `SCRAM-SHA-256$rounds:salt$stored key:server key`.
pub(crate) fn scram_verifier(password: &str, salt: &[u8]) -> String {
    // One round of PBKDF2: U1 = HMAC(password, salt || INT(1)).
    let mut salted = salt.to_vec();
    salted.extend_from_slice(&1u32.to_be_bytes());
    let salted_password = hmac(password.as_bytes(), &salted);
    let stored_key = Sha256::digest(hmac(&salted_password, b"Client Key"));
    let server_key = hmac(&salted_password, b"Server Key");
    let base64 = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
    format!("SCRAM-SHA-256${ROUNDS}:{}${}:{}", base64(salt), base64(&stored_key), base64(&server_key))
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}
