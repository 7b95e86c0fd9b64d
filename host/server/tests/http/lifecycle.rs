//! Overload, clients that leave, and the end of the server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::rig::{Server, Setup, Silent, chat_body, post};

const SOON: Duration = Duration::from_secs(20);
const CHAT: &str = "/v1/chat/completions";

fn stream_body() -> String {
    chat_body("hi", json!({"stream": true})).to_string()
}

/// Waits without blocking the runtime that the server may need.
async fn aborted(silent: Silent) -> Silent {
    tokio::task::spawn_blocking(move || {
        let submitted = silent.submissions.recv_timeout(SOON).unwrap();
        // Refused requests are told off as well.
        while silent.aborts.recv_timeout(SOON).unwrap() != submitted.id {}
        silent
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let (server, silent) = Setup::default().start_silent(1);
    let waiting = server.send(post(CHAT, stream_body())).await;
    assert_eq!(waiting.status(), 200);
    for stream in [false, true] {
        let answer = server.chat("hi", json!({"stream": stream})).await;
        assert_eq!(answer.status, 429);
        answer.error_param();
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "rate_limit_exceeded");
        // The engine counts sequences.
        assert!(error["message"].as_str().unwrap().contains("(0 sequences"), "{error}");
        assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    }
    drop(waiting);
    aborted(silent).await;
}

#[tokio::test]
async fn one_refused_prompt_takes_the_others_with_it() {
    let (server, silent) = Setup::default().start_silent(1);
    let answer = server.post("/v1/completions", json!({"prompt": ["a", "b"]})).await;
    assert_eq!(answer.status, 429);
    aborted(silent).await;
}

#[tokio::test]
async fn places_are_bounded() {
    let mut setup = Setup::default();
    setup.config.max_inflight = 1;
    let (server, _silent) = setup.start_silent(9);
    let waiting = server.send(post(CHAT, stream_body())).await;
    let full = server.chat("hi", json!({})).await;
    assert_eq!(full.status, 429);
    let message = full.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("(1 requests"), "{message}");
    drop(waiting);
    // The place is free again.
    assert_eq!(server.chat("hi", json!({"n": 0})).await.status, 400);
    assert_eq!(server.send(post(CHAT, stream_body())).await.status(), 200);
}

#[tokio::test]
async fn a_dropped_stream_aborts() {
    let (server, silent) = Setup::default().start_silent(9);
    let response = server.send(post(CHAT, stream_body())).await;
    assert_eq!(response.status(), 200);
    drop(response);
    aborted(silent).await;
    let page = server.get("/metrics").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(page.contains("finished_reason=\"abort\"} 1"), "{page}");
}

#[tokio::test]
async fn a_dropped_body_aborts() {
    let (server, silent) = Setup::default().start_silent(9);
    let router = server.router.clone();
    let body = chat_body("hi", json!({"n": 3})).to_string();
    let task =
        tokio::spawn(async move { tower::ServiceExt::oneshot(router, post(CHAT, body)).await });
    let silent = tokio::task::spawn_blocking(move || {
        silent.submissions.recv_timeout(SOON).unwrap();
        silent
    })
    .await
    .unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let abort = tokio::task::spawn_blocking(move || silent.aborts.recv_timeout(SOON));
    abort.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    let long = "x".repeat(1500);
    let setup = Setup { step_time: Duration::from_millis(2), ..Setup::says(&long) };
    let server = setup.start();
    let body = chat_body("hi", json!({"stream": true, "max_tokens": 1600})).to_string();
    let mut body = server.send(post(CHAT, body)).await.into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert!(first.is_data());
    let runner = server.runner.clone().unwrap();
    assert!(runner.stats().num_used_blocks > 0);
    drop(body);
    let deadline = std::time::Instant::now() + SOON;
    while runner.stats().num_used_blocks > 0 || runner.stats().num_requests_running > 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", runner.stats());
        tokio::task::yield_now().await;
    }
    assert!(runner.stats().generation_tokens < 1500);
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let mut setup = Setup::default();
    setup.config.keep_alive = Duration::from_millis(5);
    let (server, _silent) = setup.start_silent(9);
    let mut body = server.send(post(CHAT, stream_body())).await.into_body();
    for _ in 0..2 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.data_ref().unwrap().as_ref(), b": keep-alive\n\n");
    }
}

/// A server on a socket, and what ends it.
pub struct Serving {
    pub address: std::net::SocketAddr,
    pub stop: oneshot::Sender<()>,
    pub task: tokio::task::JoinHandle<std::io::Result<()>>,
}

pub async fn serve(server: &Server) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move { drop(stopped.await) };
    let task =
        tokio::spawn(tenon_server::serve(Arc::new(listener), server.state.clone(), shutdown));
    Serving { address, stop, task }
}

async fn connect(serving: &Serving, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_aborts_in_both_modes() {
    for stream in [true, false] {
        let (server, silent) = Setup::default().start_silent(9);
        let serving = serve(&server).await;
        let body = chat_body("hi", json!({"stream": stream})).to_string();
        let mut connection = connect(&serving, &body).await;
        if stream {
            connection.read_u8().await.unwrap();
        }
        let silent = tokio::task::spawn_blocking(move || {
            let id = silent.submissions.recv_timeout(SOON).unwrap().id;
            (silent, id)
        });
        let (silent, id) = silent.await.unwrap();
        drop(connection);
        let abort = tokio::task::spawn_blocking(move || silent.aborts.recv_timeout(SOON));
        assert_eq!(abort.await.unwrap().unwrap(), id, "stream: {stream}");
        serving.stop.send(()).unwrap();
        serving.task.await.unwrap().unwrap();
    }
}

/// Its answer is larger than what the sockets hold, so it stays in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_gives_up_its_place() {
    let mut setup = Setup::says(&"y".repeat(1900));
    setup.config.max_inflight = 1;
    setup.config.unread_timeout = Duration::from_millis(100);
    let server = setup.start();
    let serving = serve(&server).await;
    let extra = json!({"stream": true, "n": 8, "logprobs": true, "top_logprobs": 20});
    let mut connection = connect(&serving, &chat_body("hi", extra).to_string()).await;
    connection.read_u8().await.unwrap();
    let deadline = std::time::Instant::now() + SOON;
    assert_eq!(server.chat("hi", json!({"max_tokens": 1})).await.status, 429);
    while server.chat("hi", json!({"max_tokens": 1})).await.status != 200 {
        assert!(std::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).await.unwrap_err();
    serving.stop.send(()).unwrap();
    serving.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_finish_while_draining() {
    let setup = Setup { step_time: Duration::from_millis(1), ..Setup::says(&"y".repeat(100)) };
    let server = setup.start();
    let serving = serve(&server).await;
    let mut connection = connect(&serving, &stream_body()).await;
    connection.read_u8().await.unwrap();
    serving.stop.send(()).unwrap();
    // The drain is visible before the stream ends, or the stream was faster.
    let deadline = std::time::Instant::now() + SOON;
    loop {
        let health = server.get("/health").await;
        if health.status == 503 {
            assert_eq!(health.json()["status"], "draining");
            break;
        }
        assert!(std::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let refused = server.chat("hi", json!({})).await;
    assert_eq!(refused.status, 503);
    refused.error_param();
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.get("/ping").await.status, 200);
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).await.unwrap();
    let text = String::from_utf8(rest).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    serving.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_finish_in_time_ends_with_an_error() {
    let mut setup = Setup::default();
    setup.config.drain_timeout = Duration::from_millis(1);
    let (server, silent) = setup.start_silent(9);
    let serving = serve(&server).await;
    let mut streaming = connect(&serving, &stream_body()).await;
    streaming.read_u8().await.unwrap();
    let mut whole = connect(&serving, &chat_body("hi", json!({})).to_string()).await;
    let silent = tokio::task::spawn_blocking(move || {
        silent.submissions.recv_timeout(SOON).unwrap();
        silent.submissions.recv_timeout(SOON).unwrap();
        silent
    });
    let _silent = silent.await.unwrap();
    serving.stop.send(()).unwrap();
    let mut text = String::new();
    streaming.read_to_string(&mut text).await.unwrap();
    assert!(
        text.contains("data: {\"error\":{\"message\":\"the server is shutting down\""),
        "{text}"
    );
    assert!(!text.contains("[DONE]"));
    let mut text = String::new();
    whole.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    serving.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn health_and_metrics() {
    let server = Setup::says("abc").start();
    let health = server.get("/health").await;
    assert_eq!((health.status.as_u16(), health.json()), (200, json!({"status": "ok"})));
    server.chat("hi", json!({})).await;
    let page = server.get("/metrics").await;
    assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let m = "model_name=\"tiny\",engine=\"0\"";
    for line in [
        format!("vllm:prompt_tokens_total{{{m}}} 4"),
        format!("vllm:generation_tokens_total{{{m}}} 4"),
        format!("vllm:request_success_total{{{m},finished_reason=\"stop\"}} 1"),
        format!("vllm:time_to_first_token_seconds_count{{{m}}} 1"),
        format!("vllm:e2e_request_latency_seconds_count{{{m}}} 1"),
        format!("vllm:num_requests_running{{{m}}} 0"),
        format!("tenon_http_responses_total{{{m},code=\"200\"}} 2"),
    ] {
        assert!(page.lines().any(|l| l == line), "no `{line}` in\n{page}");
    }
}

#[tokio::test]
async fn half_a_body_holds_no_engine() {
    let (server, _silent) = Setup::default().start_silent(9);
    let serving = serve(&server).await;
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    let request = Request::get("/ping").body(Body::empty()).unwrap();
    assert_eq!(server.call(request).await.status, 200);
    serving.stop.send(()).unwrap();
    serving.task.await.unwrap().unwrap();
}
