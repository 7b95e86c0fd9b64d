//! What a component needs of the standard library's runtime when it does without: an allocator, and
//! what happens on a panic.

/// Two-level segregated fit (Masmano et al., 2004): constant time, and a fifth of the code of the
/// standard library's.
#[global_allocator]
static ALLOCATOR: rlsf::SmallGlobalTlsf = rlsf::SmallGlobalTlsf::new();

/// Traps. The message would reach nobody: a component has no imports. That it is not read lets the
/// linker drop all formatting code.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
