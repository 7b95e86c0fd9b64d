//! `tenon serve`: composes the server, says what it serves, and stops in order on SIGTERM.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenon_chat::choose::{self, Choice};
use tenon_chat::parser::Descriptor;
use tenon_runner::handle::RunnerHandle;
use tenon_runner::worker::WorkerThread;
use tenon_server::{Extensions, Limits, ModelCard, ServerConfig, ServerParts, ServerState};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{PolicyArg, ServeArgs};
use crate::hub::{Hub, ModelEvidence, default_cache_dir};
use crate::launch::{self, Launched, launch};
use crate::logs;

/// Threads of the HTTP side: it only moves bytes, the work is elsewhere.
const HTTP_THREADS: usize = 2;

/// Open files: the server's connections and room for all else.
const MAX_FILES: u64 = 16_384;

/// Serves until a signal says stop.
pub fn run(args: &ServeArgs) -> Result<()> {
    logs::init();
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()
        .context("the HTTP threads cannot start")?;
    let (runner, thread) = runtime.block_on(serve(args))?;
    launch::end(&runner, thread, Duration::from_secs(args.shutdown_timeout))?;
    tracing::info!("stopped");
    Ok(())
}

/// Answers until a signal says stop; gives the engine, which is still to be ended.
async fn serve(args: &ServeArgs) -> Result<(RunnerHandle, WorkerThread)> {
    // First of all: a port that is taken must not cost a model's loading time.
    let address = SocketAddr::new(args.host, args.port);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another --port"))?;
    let address = listener.local_addr()?;
    let listener = Arc::new(listener);
    println!("tenon {}", env!("CARGO_PKG_VERSION"));
    println!("loading  http://{address}/health answers 503 until the first step has run");
    let launch_args = args.clone();
    let launching = tokio::task::spawn_blocking(move || {
        launch(
            &launch_args.model,
            launch_args.scripted.as_deref(),
            launch_args.output_workers,
            Some(launch_args.max_queued_requests),
        )
    });
    let launched = tenon_server::serve_loading(&listener, launching).await??;
    let name = args.served_model_name.clone().unwrap_or_else(|| launched.name.clone());
    let hub = open_hub(args, &launched, &name)?;
    let parser = choose_parser(args, &hub, &name)?;
    let Launched { runner, thread, workers, tokenizer, template, lines, .. } = launched;
    let state = ServerState::new(ServerParts {
        model: ModelCard {
            id: name.clone(),
            aliases: Vec::new(),
            root: name.clone(),
            created: ModelCard::now(),
            max_model_len: runner.config().max_seq_len() as u32,
            vocab_size: runner.vocab_size(),
        },
        tokenizer,
        eos_token_ids: runner.config().eos_token_ids.clone(),
        template,
        engine: Arc::new(runner.clone()),
        workers,
        extensions: Arc::new(hub),
        config: config(args),
    });
    announce(args, &name, &lines, &parser, address);
    tenon_server::serve(listener, state, stop_signal()?).await?;
    Ok((runner, thread))
}

fn config(args: &ServeArgs) -> ServerConfig {
    ServerConfig {
        api_keys: args.api_key.clone(),
        admin_key: args.admin_key.clone().filter(|key| !key.is_empty()),
        metrics_auth: args.metrics_auth,
        tenant_weights: args.tenant_weights.clone(),
        has_priorities: args.model.scheduling_policy == PolicyArg::Priority,
        request_timeout: args.request_timeout.map(Duration::from_secs),
        max_body_bytes: args.max_body_bytes,
        max_inflight: args.model.max_num_seqs + args.max_queued_requests,
        allow_ignored_tools: args.allow_ignored_tools,
        drain_timeout: Duration::from_secs(args.shutdown_timeout),
        limits: limits(args.model.max_num_seqs + args.max_queued_requests),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..ServerConfig::default()
    }
}

/// Limits of one request where the engine holds at most `capacity` sequences: one that asks for
/// more could wait forever for a place.
fn limits(capacity: usize) -> Limits {
    let Limits { max_n, max_prompts, max_choices } = Limits::DEFAULT;
    let most = u32::try_from(capacity).unwrap_or(u32::MAX);
    Limits {
        max_n: max_n.min(most),
        max_prompts: max_prompts.min(capacity),
        max_choices: max_choices.min(most),
    }
}

fn open_hub(args: &ServeArgs, launched: &Launched, name: &str) -> Result<Hub> {
    let tokenizer = launched.tokenizer.clone();
    let evidence = ModelEvidence {
        name: name.to_owned(),
        template: launched.template.as_ref().map(|t| t.source().to_owned()),
        has_token: Box::new(move |text| tokenizer.token_id(text).is_some()),
    };
    let cache_dir = args.cache_dir.clone().map_or_else(default_cache_dir, Ok)?;
    Hub::open(&cache_dir, args.data_dir.as_deref(), evidence)
}

/// Binds what the flags say; a line for the start-up text.
fn choose_parser(args: &ServeArgs, hub: &Hub, model: &str) -> Result<String> {
    if let Some(bound) = hub.bound(model) {
        let name = &bound.factory.descriptor().name;
        return Ok(format!("`{name}`, bound by an earlier upload"));
    }
    let descriptors = hub.descriptors();
    let all = || descriptors.iter().map(|d| -> &Descriptor { d });
    let (tool, why) = match args.tool_call_parser.as_str() {
        "auto" => {
            let template = hub.template();
            match choose::choose(all(), template, &|text| hub.has_token(text)) {
                Choice::One { name, why } => (name, format!("auto: {why}")),
                other => {
                    if matches!(other, Choice::Ambiguous(_)) {
                        tracing::warn!("{other}");
                    }
                    ("none".to_owned(), format!("auto: {other}"))
                }
            }
        }
        name => (name.to_owned(), "--tool-call-parser".to_owned()),
    };
    let auto_reasoning = args.reasoning_parser == "auto";
    let reasoning = (!auto_reasoning).then_some(args.reasoning_parser.as_str());
    let reads_reasoning_only = all().any(|d| d.name == tool && !d.tools);
    let choice = if reads_reasoning_only {
        let style = reasoning.unwrap_or("auto");
        let found = all().find(|d| d.name == tool && !d.tools);
        let style = match style {
            "auto" => found.and_then(|d| d.reasoning_styles.first()).map(|s| s.name.clone()),
            name => Some(name.to_owned()),
        };
        choose::resolve(all(), None, style.as_deref())?
    } else {
        choose::resolve(all(), Some(&tool), reasoning)?
    };
    let Some(choice) = choice else { return Ok(format!("none ({why})")) };
    let descriptor = all().find(|d| d.name == choice.parser);
    let style = match choice.style {
        None if auto_reasoning => descriptor.and_then(|d| hub.auto_style(d)),
        style => style,
    };
    let shown = style.as_deref().unwrap_or("none");
    let line = format!("`{}`, reasoning `{shown}` ({why})", choice.parser);
    hub.bind_at_start(model, &choice.parser, style)?;
    Ok(line)
}

/// The start-up text: what is served, how, and where.
fn announce(args: &ServeArgs, name: &str, lines: &[String], parser: &str, address: SocketAddr) {
    println!("model    {name}");
    for line in lines {
        println!("         {line}");
    }
    println!("parser   {parser}");
    let admin = match args.admin_key.as_deref() {
        Some(key) if !key.is_empty() => "extensions: upload with the admin key",
        _ => "extensions: no uploads (start with --admin-key to allow them)",
    };
    println!("         {admin}");
    if !args.host.is_loopback() && args.api_key.is_empty() {
        println!("warning  open to everyone who can reach {address}: set --api-key");
    }
    println!("ready on http://{address}/v1");
    tracing::info!(model = name, %address, "ready");
}

/// Every connection is a file, and the usual limit of 1024 is an eighth of what the server takes:
/// raises it as far as this process may.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MAX_FILES).min(MAX_FILES);
    if limit.current.is_some_and(|current| current < most) {
        let raised = Rlimit { current: Some(most), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files stays; few connections fit");
        }
    }
}

/// Resolves on SIGTERM or SIGINT.
fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
