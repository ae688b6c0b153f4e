//! Encrypted connections, with the meanings that libpq gives to `sslmode`: `prefer` and `require` encrypt without
//! looking at the certificate, `verify-full` also checks it against the roots of the operating system
//! (`SSL_CERT_FILE` names others).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::StoreError;

pub(super) fn connector(verify: bool) -> Result<MakeRustlsConnect, StoreError> {
    // The provider is named, so that a second one in somebody's dependency graph cannot make rustls refuse to choose.
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Protocol(format!("TLS cannot be set up: {error}")))?;
    let config = if verify {
        builder.with_root_certificates(system_roots()?).with_no_client_auth()
    } else {
        let any = Arc::new(AnyCertificate { provider });
        builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth()
    };
    Ok(MakeRustlsConnect::new(config))
}

fn system_roots() -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let text = "sslmode=verify-full: this system has no root certificates; name a file in SSL_CERT_FILE";
        return Err(StoreError::Protocol(text.to_owned()));
    }
    Ok(roots)
}

/// Takes any certificate, but checks that the server holds its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
