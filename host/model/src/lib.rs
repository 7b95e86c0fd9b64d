//! Weight files and architectures: GGUF, safetensors, ArchSpec, lowering to a Program.
