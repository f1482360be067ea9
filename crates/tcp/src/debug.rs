//! `Debug` of errors, which programs print when `main` returns one.

use core::error::Error;
use core::fmt;

/// Writes what an error and its sources say, as one sentence.
#[doc(hidden)]
pub fn fmt_error(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{error}")?;
    let mut source = error.source();
    while let Some(error) = source {
        write!(f, ": {error}")?;
        source = error.source();
    }
    Ok(())
}

/// Implements `Debug` for error types by what they and their sources display.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),+) => {$(
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::debug::fmt_error(self, f)
            }
        }
    )+};
}
