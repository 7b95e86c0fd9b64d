//! A client that leaves while its request is prepared: the work goes on, so its place stays taken.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Setup, chat_body, post};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn what_is_prepared_for_nobody_keeps_its_place() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let mut setup = Setup::default();
            setup.config.max_inflight = 1;
            let server = setup.start();
            // The only thread for such work waits here, and behind it what is to be prepared.
            let (open, gate) = channel::<()>();
            let gate = tokio::task::spawn_blocking(move || gate.recv());
            let mut body = chat_body("hi", json!({}));
            body["prompt"] = json!("hi");
            let request = post(path, body.to_string());
            let leaving = tokio::spawn(tower::ServiceExt::oneshot(server.router.clone(), request));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            leaving.abort();
            assert!(leaving.await.unwrap_err().is_cancelled());
            let refused = tokio::time::timeout(SOON, server.chat("hi", json!({}))).await;
            drop(open);
            gate.await.unwrap().unwrap_err();
            assert_eq!(refused.expect("more is prepared than there are places").status, 429);
            let deadline = Instant::now() + SOON;
            while server.chat("hi", json!({})).await.status == 429 {
                assert!(Instant::now() < deadline, "the place is never given back");
                tokio::task::yield_now().await;
            }
        }
    });
}
