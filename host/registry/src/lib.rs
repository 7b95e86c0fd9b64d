//! Extension blobs, names, versions and bindings on disk.
