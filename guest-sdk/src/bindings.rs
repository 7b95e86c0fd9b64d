//! Generated bindings of the world `parser` in `wit/v0.1`. The types are re-exported at the crate
//! root; the export macro is reached through [`export_parser!`](crate::export_parser).
#![allow(unsafe_code, missing_docs, clippy::all, unused_qualifications)]

// SAFETY: all unsafe code below is written by wit-bindgen; it implements the canonical ABI.
wit_bindgen::generate!({
    path: "../wit/v0.1",
    world: "parser",
    generate_all,
    pub_export_macro: true,
    export_macro_name: "export_output_parser",
    default_bindings_module: "tenon_guest::bindings",
    additional_derives: [PartialEq],
});
