//! `cargo xtask demo`: from a checkout to a served model.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{guests, models, python, shell};

/// Builds, fetches, prints what to paste, serves until interrupted.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    guests::run(guests::Profile::Release)?;
    let args = ["build", "--locked", "--release", "--package", "tenon", "--package"];
    shell::run(shell::cargo().args(args).args(["tenon-extensions", "--bins"]))?;
    let model = match options.model {
        Some(path) => path,
        None => models::SMOLLM2.ensure()?,
    };
    let packages = python::ensure()?;
    let key = admin_key()?;
    print_snippets(options.port, &key, &packages);
    let mut serve = shell::cmd(shell::binary("release", "tenon"));
    serve
        .arg("serve")
        .arg(model)
        .args(["--host", "127.0.0.1", "--port", &options.port.to_string()])
        .args(["--served-model-name", "demo"])
        .env("TENON_ADMIN_KEY", &key);
    shell::run(&mut serve)
}

struct Options {
    port: u16,
    model: Option<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let mut options = Options { port: 8000, model: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("`{flag}` needs a value"))?;
            match flag.as_str() {
                "--port" => {
                    options.port = value.parse().with_context(|| format!("bad port `{value}`"))?;
                }
                "--model" => options.model = Some(PathBuf::from(value)),
                _ => bail!("unknown flag `{flag}` (known: --port, --model)"),
            }
        }
        Ok(options)
    }
}

/// A random key, kept so that a restarted demo has the same one.
fn admin_key() -> Result<String> {
    let path = shell::root().join("target/demo-admin-key");
    if let Ok(key) = fs::read_to_string(&path) {
        return Ok(key.trim().to_owned());
    }
    let mut bytes = [0u8; 16];
    let mut random = fs::File::open("/dev/urandom").context("no source of randomness")?;
    std::io::Read::read_exact(&mut random, &mut bytes)?;
    let key = bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    fs::write(&path, &key)?;
    restrict(&path)?;
    Ok(key)
}

#[cfg(unix)]
fn restrict(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

fn print_snippets(port: u16, key: &str, packages: &Path) {
    let packages = packages.display();
    println!(
        r#"
URL        http://127.0.0.1:{port}/v1
admin key  {key}

curl -s http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' -d '{{"model": "demo", "messages": [{{"role": "user", "content": "Name three rivers."}}], "max_tokens": 64}}'

PYTHONPATH={packages} python3 - <<'EOF'
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="none")
messages = [{{"role": "user", "content": "Name three rivers."}}]
answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=64, stream=True)
for chunk in answer:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
EOF

Starting; paste the lines above into another terminal once the server says that it is ready.
"#
    );
}
