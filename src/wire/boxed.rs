//! Futures that are made where they stay.

use std::pin::Pin;

/// The future that `make` makes, in a box. Where `Box::pin` takes a future, it is made on the stack and copied into the
/// box, ten thousand bytes for a request of the web, most of which mean nothing yet. Here the box is there first, and what
/// the future begins with is all that is written.
pub fn boxed<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let room = Box::new_uninit();
    Box::into_pin(Box::write(room, make()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_is_made_once_and_runs_to_its_end_where_it_is() {
        let mut made = 0;
        let text = String::from("whole");
        let future = boxed(|| {
            made += 1;
            async move {
                tokio::task::yield_now().await;
                text
            }
        });
        assert_eq!(future.await, "whole");
        assert_eq!(made, 1);
    }
}
