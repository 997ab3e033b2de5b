//! The tunnel model behind HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Frames, TunnelModel, status, wait_until};
use crate::tunnel::https::message::Message;
use crate::types::Secret;

/// The model behind HTTP, with a switch to break connections.
pub(in crate::client) struct Inside {
    pub(in crate::client) model: Mutex<TunnelModel>,
    pub(in crate::client) changed: Notify,
    cut: Mutex<CancellationToken>,
    pub(in crate::client) targets: Mutex<Vec<String>>,
    /// What a request is answered with in place of a tunnel.
    pub(in crate::client) refusal: Mutex<Option<StatusCode>>,
    pub(in crate::client) connections: AtomicUsize,
}

impl Inside {
    pub(in crate::client) fn new() -> Arc<Self> {
        Arc::new(Self {
            model: Mutex::new(TunnelModel::new()),
            changed: Notify::new(),
            cut: Mutex::default(),
            targets: Mutex::default(),
            refusal: Mutex::default(),
            connections: AtomicUsize::new(0),
        })
    }

    pub(in crate::client) fn serve(self: Arc<Self>, request: Request<Incoming>) -> Response<Frames> {
        self.targets.lock().push(request.uri().to_string());
        if let Some(refusal) = *self.refusal.lock() {
            return status(refusal);
        }
        assert!(request.headers().get(http::header::COOKIE).is_none());
        let query = request.uri().query().unwrap().to_owned();
        if request.uri().path() == "/ice/reconnect" {
            let (id, secret) = query.split_once('&').unwrap();
            assert_eq!(id, "ks7");
            self.model.lock().resumed(&Secret::new(secret));
        } else {
            assert_eq!(query, "ks7");
            self.break_connection();
            self.model.lock().restart();
        }
        self.connections.fetch_add(1, Ordering::SeqCst);
        let cut = self.cut.lock().clone();
        let (sender, frames) = Frames::channel();
        let tasks = TaskTracker::new();
        let (reader, writer) = (self.clone(), self);
        let mut body = request.into_body();
        tasks.spawn(cut.clone().run_until_cancelled_owned(async move {
            while let Some(Ok(frame)) = body.frame().await {
                reader.model.lock().receive(frame.into_data().unwrap());
                reader.changed.notify_waiters();
            }
        }));
        tasks.spawn(cut.run_until_cancelled_owned(async move {
            loop {
                wait_until(&writer.changed, || !writer.model.lock().out.is_empty()).await;
                let chunk = writer.model.lock().out.pop_front();
                if let Some(chunk) = chunk
                    && sender.send(chunk).await.is_err()
                {
                    return;
                }
            }
        }));
        Response::new(frames)
    }

    pub(in crate::client) fn break_connection(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    /// Does something at the gateway.
    pub(in crate::client) fn act<T>(&self, act: impl FnOnce(&mut TunnelModel) -> T) -> T {
        let done = act(&mut self.model.lock());
        self.changed.notify_waiters();
        done
    }

    pub(in crate::client) async fn wait(&self, mut holds: impl FnMut(&TunnelModel) -> bool) {
        wait_until(&self.changed, || holds(&self.model.lock())).await;
    }

    pub(in crate::client) async fn received(&self, channel: u32, octets: usize) -> Vec<u8> {
        let has = |model: &TunnelModel| {
            model
                .desktops
                .get(&channel)
                .is_some_and(|it| it.received.len() >= octets)
        };
        self.wait(has).await;
        self.model.lock().desktops[&channel].received.clone()
    }

    pub(in crate::client) async fn is_lowered(&self, channel: i32) {
        self.wait(|model| model.messages.contains(&Message::Lower { channel }))
            .await;
    }
}
