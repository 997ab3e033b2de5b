//! The operator's side.

use super::{Check, secondary};
use crate::config::document::format::Bind;
use crate::config::document::{self, NewLogins, QuiesceAnswer};
use crate::config::path::SettingPath;
use crate::config::problem::Problem;
use crate::config::{self, Admin, Quiesce};

impl Check<'_> {
    pub(super) fn admin(&mut self, admin: &document::Admin) -> Admin {
        if !admin.allow_any_address {
            let path = SettingPath::of(&["admin", "bind"]);
            self.every_address(&admin.bind, &path, "allow it with admin.allow_any_address = true");
        }
        Admin {
            bind: secondary::addresses(&admin.bind),
            certificate: admin.certificate.clone(),
        }
    }

    pub(super) fn quiesce(&mut self, quiesce: &document::Quiesce) -> Quiesce {
        let path = SettingPath::of(&["quiesce", "agent"]);
        let answer = match quiesce.answer {
            QuiesceAnswer::Unavailable => config::QuiesceAnswer::Unavailable,
            QuiesceAnswer::TwoStep => config::QuiesceAnswer::TwoStep(quiesce.step.0),
            QuiesceAnswer::Agent => config::QuiesceAnswer::Agent,
        };
        if answer == config::QuiesceAnswer::Agent && quiesce.agent.is_empty() {
            self.missing(
                &path,
                r#"agent = ["10.0.0.11:9442"]: without it no balancer learns anything"#,
            );
        }
        if quiesce.agent_from.is_empty() {
            self.every_address(&quiesce.agent, &path, "list the balancers in quiesce.agent_from");
        }
        Quiesce {
            answer,
            agent: secondary::addresses(&quiesce.agent),
            agent_from: secondary::networks(&quiesce.agent_from),
            refuses_logins: matches!(quiesce.new_logins, NewLogins::Refuse),
        }
    }

    /// Notes addresses that are those of every network that the node is in.
    fn every_address(&mut self, binds: &[Bind], list: &SettingPath, unless: &'static str) {
        for (index, bind) in binds
            .iter()
            .enumerate()
            .filter(|(_, bind)| bind.0.ip().is_unspecified())
        {
            let address = bind.0;
            self.note(
                self.places.element(list, index),
                Problem::EveryAddress { address, unless },
            );
        }
    }
}
