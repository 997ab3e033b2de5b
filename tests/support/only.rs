//! Accepts one certificate under any name.

use portcullis::secure::{Judge, Shown};
use rustls::Error;
use rustls::pki_types::CertificateDer;

/// That certificate.
#[derive(Debug)]
pub struct This(pub CertificateDer<'static>);

impl Judge for This {
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error> {
        assert_eq!(*shown.certificate, self.0);
        Ok(())
    }
}
