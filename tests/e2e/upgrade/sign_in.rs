//! Sign-ins in two screens.

use std::time::Duration;

use super::client::Client;
use crate::e2e::balancer::rig::Node;
use crate::support::raw::message;

/// The first screen, at least one whole change of each node, and the second screen.
pub(super) fn turn(client: &Client, _: Node, (): &mut ()) {
    let book = &client.load.book;
    client.begin_anew();
    let step = book.step();
    let cookie = client.begin();
    while !book.has_changed_since(step) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let cookie = client.finish(&cookie);
    let over = client.post(Some(&cookie), &message("<do-logout/>"));
    assert!(over.text().contains("<result>ok</result>"), "{}", over.text());
}
