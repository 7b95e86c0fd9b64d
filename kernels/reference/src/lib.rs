//! Scalar oracle backend: plain loops, one op per function.
