//! Zeroed memory aligned to cache lines, on huge pages where asked for.
//!
//! Large buffers are mapped, not allocated: their pages cost nothing until they are touched, which
//! matters for KV pools. All of a backend's memory comes from here, at prepare.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use tenon_backend::BackendError;

/// Buffers from this size on are mapped.
const MAP_FROM_BYTES: usize = 4 << 20;
/// A huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// A cache line, and the width of the widest vector.
pub const LINE_BYTES: usize = 64;

/// Element types for which all bit patterns, zero included, are values.
pub trait Plain: Copy + Send + Sync + 'static {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A fixed-size zeroed slice of `T`, aligned to 64 bytes.
pub struct Buffer<T: Plain> {
    ptr: NonNull<T>,
    len: usize,
    source: Source,
}

enum Source {
    Allocated(Layout),
    #[cfg(target_os = "linux")]
    Mapped {
        base: *mut core::ffi::c_void,
        bytes: usize,
    },
}

// SAFETY: a Buffer owns its memory like a Vec does; T is plain data.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `len` zeroed elements; `what` names them in the error.
    pub fn zeroed(len: usize, what: &'static str) -> Result<Self, BackendError> {
        Self::new(len, what, false)
    }

    /// The same for memory that will be used from end to end: on huge pages if there are any.
    pub fn zeroed_huge(len: usize, what: &'static str) -> Result<Self, BackendError> {
        Self::new(len, what, true)
    }

    fn new(len: usize, what: &'static str, huge: bool) -> Result<Self, BackendError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&b| b < isize::MAX as usize / 2);
        let bytes = bytes.ok_or(BackendError::OutOfMemory { what, bytes: usize::MAX })?;
        let out_of_memory = || BackendError::OutOfMemory { what, bytes };
        #[cfg(target_os = "linux")]
        if bytes >= MAP_FROM_BYTES {
            return Self::mapped(len, bytes, huge).ok_or_else(out_of_memory);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = huge;
        let layout = Layout::from_size_align(bytes.max(LINE_BYTES), LINE_BYTES)
            .expect("the size was checked and the alignment is a power of two");
        // SAFETY: the layout's size is not zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }.cast()).ok_or_else(out_of_memory)?;
        Ok(Buffer { ptr, len, source: Source::Allocated(layout) })
    }

    /// For threads that write disjoint parts while others hold no reference to them.
    pub fn shared(&self) -> SharedPtr<T> {
        SharedPtr(self.ptr.as_ptr())
    }

    #[cfg(target_os = "linux")]
    fn mapped(len: usize, bytes: usize, huge: bool) -> Option<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let mapped_bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, prot, flags) }.ok()?;
        let aligned = base.wrapping_byte_add(base.addr().wrapping_neg() % HUGE_PAGE_BYTES);
        let advised = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        // SAFETY: the range lies inside of the mapping; the advice does not change its contents.
        if huge && unsafe { madvise(aligned, advised, Advice::LinuxHugepage) }.is_err() {
            tracing::debug!(bytes, "no huge pages for a large buffer");
        }
        let source = Source::Mapped { base, bytes: mapped_bytes };
        Some(Buffer { ptr: NonNull::new(aligned.cast())?, len, source })
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialized elements that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: allocated with this layout and not freed before.
            Source::Allocated(layout) => unsafe { dealloc(self.ptr.as_ptr().cast(), layout) },
            #[cfg(target_os = "linux")]
            Source::Mapped { base, bytes } => {
                // SAFETY: mapped by `mapped` with this size and not unmapped before.
                let unmapped = unsafe { rustix::mm::munmap(base, bytes) };
                debug_assert!(unmapped.is_ok());
            }
        }
    }
}

/// A pointer that tasks on several threads write disjoint parts through.
#[derive(Clone, Copy)]
pub struct SharedPtr<T>(*mut T);

// SAFETY: only hands out the pointer; whoever dereferences it keeps the parts disjoint.
unsafe impl<T: Plain> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// Of an exclusively borrowed slice.
    pub fn new(slice: &mut [T]) -> Self {
        SharedPtr(slice.as_mut_ptr())
    }

    /// The address of element `index`.
    ///
    /// # Safety
    /// `index` lies within (or one past) the slice that this was made from.
    pub unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: by this function's contract.
        unsafe { self.0.add(index) }
    }

    /// `len` elements from `start` on, exclusively.
    ///
    /// # Safety
    /// They lie within the slice that this was made from, which is still borrowed, and no other
    /// reference to any of them exists.
    pub unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
