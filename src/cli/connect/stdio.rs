//! One channel on standard input and output.
//!
//! Two threads of their own read and write: a runtime's thread that waits for standard input could not be ended.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::client::Channel;

/// Carries octets until the desktop closes, or whoever reads standard output is gone.
///
/// The end of standard input does not end it: the answer may be yet to come.
///
/// # Errors
/// Standard input or output is not open.
pub(super) async fn carry(channel: Channel) -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    carry_between(channel, input, output).await
}

async fn carry_between(mut channel: Channel, input: OwnedFd, output: OwnedFd) -> io::Result<()> {
    let mut typed = reader(input);
    let closed = closed(output.try_clone()?);
    let (shown, mut written) = writer(output);

    let sender = channel.sender();
    let upward = async {
        while let Some(octets) = typed.recv().await {
            if sender.send(octets).await.is_err() {
                break;
            }
        }
        sender.finish().await;
        std::future::pending::<Infallible>().await
    };
    let downward = async {
        while let Some(octets) = channel.receive().await {
            if shown.send(octets).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = downward => {}
        never = upward => match never {},
        () = closed => return gone(channel).await,
        _ = &mut written => return gone(channel).await,
    }
    channel.close().await;
    drop(shown);
    // No deadline: what the desktop sent belongs to whoever reads, at their pace.
    let _ = written.await;
    Ok(())
}

/// Nobody reads standard output any more.
async fn gone(channel: Channel) -> io::Result<()> {
    channel.close().await;
    Ok(())
}

/// Reads to the end in a thread, which ends with the process.
fn reader(input: OwnedFd) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    thread::spawn(move || {
        let mut input = File::from(input);
        let mut buffer = vec![0; PIECE];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(octets) => {
                    if sender.blocking_send(Bytes::copy_from_slice(&buffer[..octets])).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Writes in a thread. The second part tells when it has written everything, or cannot write any more.
fn writer(output: OwnedFd) -> (mpsc::Sender<Bytes>, oneshot::Receiver<()>) {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(QUEUE);
    let (done, written) = oneshot::channel();
    thread::spawn(move || {
        let mut output = File::from(output);
        while let Some(octets) = receiver.blocking_recv() {
            if output.write_all(&octets).is_err() {
                break;
            }
        }
        // Nobody may be waiting any more.
        let _ = done.send(());
    });
    (sender, written)
}

/// Waits until nobody can read what is written. For a file that is never.
#[expect(
    deprecated,
    reason = "the successor is unsafe to call; what it asks for holds: the descriptor is owned"
)]
async fn closed(output: OwnedFd) {
    if let Ok(output) = AsyncFd::with_interest(output, Interest::ERROR)
        && output.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

const QUEUE: usize = 4;
const PIECE: usize = 10_240;

#[cfg(test)]
mod tests {
    use std::io::pipe;

    use tokio::sync::mpsc;

    use super::*;
    use crate::client::model::{Lab, settings};
    use crate::client::{Credentials, Doors, Reached, Session, Tunnel, Unattended, choose};
    use crate::types::Secret;

    async fn channel(lab: &Lab) -> (Session, Tunnel, Channel) {
        let mut nobody = Unattended;
        let reached = Reached::dial(lab.endpoint(), settings(lab.thumbprint()), &mut nobody)
            .await
            .unwrap();
        let credentials = Credentials {
            user: Some("ann".into()),
            password: Some(Secret::new("plum")),
            ..Credentials::default()
        };
        let mut session = reached.sign_in(credentials, &mut nobody).await.unwrap();
        let (notices, _) = mpsc::channel(1);
        let tunnel = session.open_tunnel(Doors::Held, notices, &mut nobody).await.unwrap();
        let desktop = choose(session.desktops(), Some("shell")).unwrap().clone();
        let launched = session.launch(&desktop, None).await.unwrap();
        let channel = tunnel.raise(launched.port).await.unwrap();
        (session, tunnel, channel)
    }

    #[tokio::test]
    async fn the_whole_answer_is_written_although_the_input_has_ended() {
        let lab = Lab::new().await;
        let (_session, _tunnel, channel) = channel(&lab).await;
        let ((input, mut typing), (mut shown, output)) = (pipe().unwrap(), pipe().unwrap());
        let question: Vec<u8> = (0..200_000_u32).map(|place| (place % 251) as u8).collect();
        let typed = question.clone();
        let typist = thread::spawn(move || typing.write_all(&typed).unwrap());
        let reading = thread::spawn(move || {
            let mut answer = Vec::new();
            shown.read_to_end(&mut answer).map(|_| answer)
        });
        let (carried, ()) = tokio::join!(
            carry_between(channel, input.into(), output.into()),
            lab.echo(1, 200_000)
        );
        carried.unwrap();
        typist.join().unwrap();
        assert!(reading.join().unwrap().unwrap() == question);
    }

    #[tokio::test]
    async fn it_ends_when_nobody_reads_any_more() {
        let lab = Lab::new().await;
        let (_session, _tunnel, channel) = channel(&lab).await;
        let ((input, typing), (shown, output)) = (pipe().unwrap(), pipe().unwrap());
        // Somebody may still type.
        drop(shown);
        carry_between(channel, input.into(), output.into()).await.unwrap();
        drop(typing);
    }
}
