//! Start-up to the end: what each version does over time.

use crate::check_snapshot;
