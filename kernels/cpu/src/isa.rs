//! Which instructions the kernels use, chosen once at run time.

/// An instruction set that kernels exist for, from slow to fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust for the target's baseline.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL) with VNNI.
    Avx512,
    /// The same with BF16 dot products.
    Avx512Bf16,
}

impl Isa {
    /// Every one, from slow to fast.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

    /// The fastest that this machine has.
    pub fn detect() -> Isa {
        let found = Isa::ALL.into_iter().rev().find(|isa| isa.is_available());
        found.unwrap_or(Isa::Portable)
    }

    /// Whether this machine can run it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = || has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = || {
            avx2()
                && has!("avx512f")
                && has!("avx512bw")
                && has!("avx512dq")
                && has!("avx512vl")
                && has!("avx512vnni")
        };
        match self {
            Isa::Portable => true,
            Isa::Avx2 => avx2(),
            Isa::Avx512 => avx512(),
            Isa::Avx512Bf16 => avx512() && has!("avx512bf16"),
        }
    }

    /// Whether this machine can run it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Isa::Portable
    }

    /// For start-up text and messages.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512-vnni",
            Isa::Avx512Bf16 => "avx512-vnni-bf16",
        }
    }
}

/// Compiles an `#[inline(always)]` function once per instruction set, for the compiler to
/// vectorize, and defines a function of the same arguments that takes an [`Isa`] first.
///
/// The `Isa` must be available on the machine: `CpuBackend` checks that once, at prepare.
macro_rules! for_each_isa {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? = $body:path;)*) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa {
                $crate::isa::Isa::Portable => $body($($arg),*),
                // SAFETY: an Isa that reaches a kernel was checked to be available.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                _ => unsafe { avx512($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                _ => $body($($arg),*),
            }
        }
    )*};
}
pub(crate) use for_each_isa;
