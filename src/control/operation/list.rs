//! The answers that list what a user may launch.

mod application;
mod desktop;

pub use application::{Application, FileType, Icon, RegisteredFileTypes};
pub use desktop::{Desktop, DesktopState, OfferedProtocol};

use super::Flaw;
use crate::control::xml::Element;

/// The answer to `get-launch-items`: the sections that were asked for.
///
/// What one application session or shadow session looks like is not known from public facts: those two sections are
/// read and written as empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchItems {
    /// Desktops.
    pub desktops: Option<Vec<Desktop>>,
    /// Applications.
    pub applications: Option<Vec<Application>>,
    /// Whether there is a section of application sessions.
    pub application_sessions: bool,
    /// Whether there is a section of sessions that can be watched.
    pub shadow_sessions: bool,
}

impl LaunchItems {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        let applications = |section: &Element| section.named("application").map(Application::read).collect();
        Ok(Self {
            desktops: element.child("desktops").map(Desktop::read_all).transpose()?,
            applications: element.child("applications").map(applications).transpose()?,
            application_sessions: element.child("application-sessions").is_some(),
            shadow_sessions: element.child("shadow-sessions").is_some(),
        })
    }

    pub(super) fn write(&self, out: &mut Element) {
        if let Some(desktops) = &self.desktops {
            let mut section = Element::new("desktops");
            Desktop::write_all(desktops, &mut section);
            out.push(section);
        }
        if let Some(applications) = &self.applications {
            let mut section = Element::new("applications");
            for application in applications {
                section.push(application.write());
            }
            out.push(section);
        }
        if self.application_sessions {
            out.push(Element::new("application-sessions"));
        }
        if self.shadow_sessions {
            out.push(Element::new("shadow-sessions"));
        }
    }
}
