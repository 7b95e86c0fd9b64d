//! CPU backend: AVX-512 and AVX2 kernels with run-time dispatch.
