//! Answers that are ready before the body has come: they reach clients that write all of it first.

use std::time::{Duration, Instant};

use axum::response::Response;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::lifecycle::{Serving, serve};
use crate::rig::{Server, Setup, Silent, chat_body, post};

const CHAT: &str = "/v1/chat/completions";
/// More than sockets hold.
const LONG: usize = 6 << 20;

/// Status, headers in lower case and body.
type Heard = (u16, String, Value);

async fn connect(serving: &Serving) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(serving.address).await.unwrap())
}

async fn write(stream: &mut BufReader<TcpStream>, path: &str, headers: &str, body: &[u8]) {
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
}

async fn read(stream: &mut BufReader<TcpStream>) -> Heard {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).await.unwrap() > 0, "it ends behind {head:?}");
    }
    let head = head.to_ascii_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let mut body = vec![0; field("content-length: ").unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    let status = field("http/1.1 ").unwrap()[..3].parse().unwrap();
    (status, head.clone(), serde_json::from_slice(&body).unwrap())
}

/// A whole request, then its answer.
async fn ask(stream: &mut BufReader<TcpStream>, path: &str, headers: &str, len: usize) -> Heard {
    let headers = format!("{headers}content-length: {len}\r\n");
    write(stream, path, &headers, &vec![b'x'; len]).await;
    read(stream).await
}

fn is_last(heard: &Heard) -> bool {
    heard.1.contains("\r\nconnection: close\r\n")
}

async fn stop(serving: Serving) {
    serving.stop.send(()).unwrap();
    serving.task.await.unwrap().unwrap();
}

/// A server whose only place is taken, and what holds it.
async fn full(setup: Setup) -> (Server, (Silent, Response)) {
    let (server, silent) = setup.start_silent(9);
    let body = chat_body("hi", json!({"stream": true})).to_string();
    let mut request = post(CHAT, body);
    request.headers_mut().insert("authorization", "Bearer k".parse().unwrap());
    let waiting = server.send(request).await;
    assert_eq!(waiting.status(), 200);
    (server, (silent, waiting))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_reaches_who_sends_on_and_the_connection_stays() {
    let mut setup = Setup::default();
    setup.config.max_inflight = 1;
    setup.config.api_keys = vec!["k".into()];
    let (server, _waiting) = full(setup).await;
    let serving = serve(&server).await;
    let mut stream = connect(&serving).await;
    let key = "authorization: Bearer k\r\n";
    for (path, headers, status) in [
        (CHAT, key, 429),
        (CHAT, "", 401),
        ("/v1/nothing", key, 404),
        ("/v1/models", key, 405),
        ("/v1/extensions", key, 403),
    ] {
        for len in [0, 1, 100, 300_000, LONG] {
            let heard = ask(&mut stream, path, headers, len).await;
            assert_eq!(heard.0, status, "{path} {len}: {heard:?}");
            assert!(!is_last(&heard), "{path} {len}: {heard:?}");
        }
    }
    drop(stream);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_before_its_end() {
    let mut setup = Setup::default();
    setup.config.max_body_bytes = 1000;
    let server = setup.start();
    let serving = serve(&server).await;
    // Beyond what is read for nothing.
    for len in [1001, LONG, 40 << 20] {
        let mut stream = connect(&serving).await;
        let heard = ask(&mut stream, CHAT, "", len).await;
        assert_eq!(heard.0, 413, "{len}: {heard:?}");
        assert!(is_last(&heard), "{len}: {heard:?}");
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
    }
    // The same in pieces of unknown number.
    let mut stream = connect(&serving).await;
    write(&mut stream, CHAT, "transfer-encoding: chunked\r\n", b"").await;
    for _ in 0..LONG / 0x10000 {
        stream.write_all(b"10000\r\n").await.unwrap();
        stream.write_all(&[b'x'; 0x10000]).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let heard = read(&mut stream).await;
    assert!(heard.0 == 413 && is_last(&heard), "{heard:?}");
    drop(stream);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_trickles_is_answered_and_closed() {
    let server = Setup::default().start();
    let serving = serve(&server).await;
    let mut stream = connect(&serving).await;
    write(&mut stream, "/v1/nothing", "content-length: 1000\r\n", b"xx").await;
    let heard = read(&mut stream).await;
    assert!(heard.0 == 404 && is_last(&heard), "{heard:?}");
    // What still comes is taken until the client ends, and so does not cost the answer.
    stream.write_all(b"xx").await.unwrap();
    assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
    drop(stream);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_before_sending_is_told_no() {
    let server = Setup::default().start();
    let serving = serve(&server).await;
    let mut stream = connect(&serving).await;
    let begin = Instant::now();
    let headers = "content-length: 1000\r\nexpect: 100-continue\r\n";
    write(&mut stream, "/v1/nothing", headers, b"").await;
    let heard = read(&mut stream).await;
    assert!(heard.0 == 404 && is_last(&heard), "{heard:?}");
    assert!(begin.elapsed() < Duration::from_millis(900));
    drop(stream);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_told_to_who_sends() {
    let mut setup = Setup::default();
    setup.config.max_inflight = 1;
    let (server, waiting) = full(setup).await;
    let serving = serve(&server).await;
    let mut stream = connect(&serving).await;
    // Accepted before the drain.
    assert_eq!(ask(&mut stream, "/ping", "", 0).await.0, 200);
    serving.stop.send(()).unwrap();
    while server.get("/health").await.status != 503 {
        tokio::task::yield_now().await;
    }
    let heard = ask(&mut stream, CHAT, "", LONG).await;
    assert_eq!(heard.0, 503, "{heard:?}");
    drop((stream, waiting));
    serving.task.await.unwrap().unwrap();
}
