//! What is looked at before anything is changed.

use std::time::Instant;

use super::capacity::{self, Capacity};
use super::journey;
use super::member::{Member, MemberFault};
use super::taken_out::TakenOut;
use super::upgrade::Method;
use crate::admin::api::{NodeStatus, UpgradeCheck};
use crate::cli::Exit;
use crate::clock;

/// A node that may be upgraded.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) status: NodeStatus,
    pub(super) check: UpgradeCheck,
    /// When the status was asked for.
    pub(super) asked: Instant,
    /// How far the way of a user was gone.
    pub(super) walked: Option<&'static str>,
}

/// What does not hold of a node.
#[derive(Debug)]
pub(super) struct Unfit {
    /// One or more, in words.
    pub(super) faults: Vec<String>,
    pub(super) exit: Exit,
}

impl Ready {
    /// Whether it runs the program already, and nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.runs_it() && self.status.state == "serving"
    }

    /// Whether it runs the program already.
    pub(super) fn runs_it(&self) -> bool {
        self.check.sha256 == self.check.running_sha256
    }
}

/// Looks at a node; changes nothing.
///
/// # Errors
/// All that does not hold.
pub(super) async fn look(member: &Member, method: Method, taken_out: &TakenOut) -> Result<Ready, Unfit> {
    let asked = clock::now();
    let status = member.status().await.map_err(|fault| Unfit::of(&fault))?;
    let mut faults = Vec::new();
    let is_serving = status.state == "serving";
    let was_left = status.state == "quiesced" && taken_out.has(&member.name);
    if !(is_serving || was_left) {
        let (state, name) = (&status.state, &member.name);
        faults.push(format!(
            "It is {state}, and not by an upgrade of this inventory. Put it back first: portcullis fleet quiesce off {name}"
        ));
    }
    if is_serving && status.health != 200 {
        faults.push(format!("Its health check answers {}.", status.health));
    }
    if method == Method::Handover && status.can_hand_over == Some(false) {
        faults.push("It cannot be handed over at this moment.".to_owned());
    }
    let mut walked = None;
    if let Some(front) = member.front.as_ref().filter(|_| is_serving) {
        match journey::walk(front).await {
            Ok(far) => walked = Some(far),
            Err(words) => faults.push(format!("A user does not get through: {words}.")),
        }
    }
    let check = match &member.binary {
        None => Err("The inventory does not say which `binary` it is to run.".to_owned()),
        Some(binary) => member.check(binary).await.map_err(|fault| fault.to_string()),
    };
    match check {
        Ok(check) if faults.is_empty() && check.faults.is_empty() => Ok(Ready {
            status,
            check,
            asked,
            walked,
        }),
        Ok(check) => {
            faults.extend(check.faults);
            Err(Unfit::check(faults))
        }
        Err(fault) => {
            faults.push(fault);
            Err(Unfit::check(faults))
        }
    }
}

impl Unfit {
    /// Something about the whole, or a node, that does not hold.
    pub(super) fn check(faults: Vec<String>) -> Self {
        Self {
            faults,
            exit: Exit::Invalid,
        }
    }

    fn of(fault: &MemberFault) -> Self {
        let exit = fault.exit();
        let exit = if exit == Exit::Failed { Exit::Invalid } else { exit };
        Self {
            faults: vec![fault.to_string()],
            exit,
        }
    }
}

/// Whether a batch can be missed: a fault if it is to be out, a hint if it is not meant to be.
pub(super) fn can_be_missed(batch: &[&str], all: &[NodeStatus], method: Method) -> Result<Option<String>, String> {
    let names = batch.join(", ");
    let words = match capacity::without(batch, all) {
        Capacity::Enough => return Ok(None),
        Capacity::NobodyElse => format!("Without {names} no node is in service."),
        Capacity::TooLittle { sessions, room } => {
            format!("Without {names} there is room for {room} sessions, and there are {sessions}.")
        }
    };
    match method {
        Method::Handover => Ok(Some(words)),
        Method::Restart => Err(words),
    }
}
