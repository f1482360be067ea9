//! The ground of the stack's attacks. Those against a gateway are made over IPv4: a relay knows no
//! families, and the stack is attacked over both.

#[allow(dead_code, unused_imports, unused_macros, reason = "shared with the tests of the stack")]
#[path = "../../../neap/tests/hard/ground.rs"]
mod shared;

pub(crate) use shared::*;

/// Makes a test over IPv4 of each function, which takes the [`Family`](crate::common::Family).
macro_rules! for_each_family {
    ($($name:ident),+ $(,)?) => {
        mod v4 {
            $crate::ground::for_family!(V4 $($name)+);
        }
    };
}
pub(crate) use for_each_family;

/// Makes a test over one family of each function.
macro_rules! for_family {
    ($family:ident $($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                let _turn = $crate::ground::turn();
                $crate::common::in_namespace(|| super::$name($crate::common::Family::$family));
            }
        )+
    };
}
pub(crate) use for_family;
