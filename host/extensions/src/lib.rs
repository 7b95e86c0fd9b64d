//! The sandbox host: admission, compilation, stores, limits of WebAssembly components.
