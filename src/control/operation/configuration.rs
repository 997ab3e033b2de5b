//! The answers around signing in.

use super::Flaw;
use crate::control::envelope::Version;
use crate::control::screen::{Param, Screen};
use crate::control::xml::Element;
use crate::types::Secret;

/// The answer to `get-configuration`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The screen that is due; `None` if nothing is asked.
    pub screen: Option<Screen>,
    /// From 15.0: a GUID of the server.
    pub broker_guid: Option<String>,
    /// From 15.0: settings for the client, such as `clientHideDomainList`.
    pub client_configuration: Vec<Param>,
}

impl Configuration {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        Ok(Self {
            screen: read_screen(element)?,
            broker_guid: element.optional_word("broker-guid"),
            client_configuration: element
                .child("client-configuration")
                .map(Param::read_all)
                .unwrap_or_default(),
        })
    }

    pub(super) fn write(&self, out: &mut Element, version: Version) {
        if let Some(screen) = &self.screen {
            write_screen(screen, out);
        }
        if version < Version::V15_0 {
            return;
        }
        out.push_optional("broker-guid", self.broker_guid.as_deref());
        if !self.client_configuration.is_empty() {
            let mut section = Element::new("client-configuration");
            Param::write_all(&self.client_configuration, &mut section);
            out.push(section);
        }
    }
}

/// Reads `authentication/screen`.
pub(super) fn read_screen(element: &Element) -> Result<Option<Screen>, Flaw> {
    let screen = element
        .child("authentication")
        .and_then(|authentication| authentication.child("screen"));
    screen.map(Screen::read).transpose()
}

/// Writes `authentication/screen`.
pub(super) fn write_screen(screen: &Screen, out: &mut Element) {
    out.push(Element::new("authentication").with(screen.write()));
}

/// The answer to the `do-submit-authentication` that completes the sign-in.
///
/// The times are known from answers to clients of 14.0 and 15.0 and are written from 14.0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedIn {
    /// An identifier of the user.
    pub user_sid: Option<String>,
    /// Whether single sign-on without a network is off.
    pub offline_sso_disabled: Option<bool>,
    /// How long credentials may be kept for that.
    pub offline_sso_cache_timeout: Option<i64>,
    /// Whether the client logs out when its machine is suspended.
    pub logout_on_host_suspend: Option<bool>,
    /// Whether the client logs out when the smart card is taken away. Also written for versions below 14.0.
    pub logout_on_cert_removal: Option<bool>,
    /// Seconds between heartbeats.
    pub user_activity_interval: Option<i64>,
    /// Seconds without activity after which the session ends; -1 for never.
    pub idle_timeout: Option<i64>,
    /// Seconds after which the session ends; -1 for never.
    pub max_broker_session_time: Option<i64>,
    /// A token that a browser client sends back.
    pub csrf_token: Option<Secret>,
}

impl SignedIn {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        Ok(Self {
            user_sid: element.optional("user-sid"),
            offline_sso_disabled: element.optional_flag("offline-sso-disabled"),
            offline_sso_cache_timeout: element.number("offline-sso-cache-timeout")?,
            logout_on_host_suspend: element.optional_flag("logout-on-host-suspend-enabled"),
            logout_on_cert_removal: element.optional_flag("logout-on-cert-removal-enabled"),
            user_activity_interval: element.number("user-activity-interval")?,
            idle_timeout: element.number("idle-timeout")?,
            max_broker_session_time: element.number("max-broker-session-time")?,
            csrf_token: element.secret("csrf-token"),
        })
    }

    pub(super) fn write(&self, out: &mut Element, version: Version) {
        if let Some(flag) = self.logout_on_cert_removal {
            out.push_flag("logout-on-cert-removal-enabled", flag);
        }
        if version < Version::V14_0 {
            return;
        }
        out.push_optional("user-sid", self.user_sid.as_deref());
        if let Some(flag) = self.offline_sso_disabled {
            out.push_flag("offline-sso-disabled", flag);
        }
        out.push_number("offline-sso-cache-timeout", self.offline_sso_cache_timeout);
        if let Some(flag) = self.logout_on_host_suspend {
            out.push_flag("logout-on-host-suspend-enabled", flag);
        }
        out.push_number("user-activity-interval", self.user_activity_interval);
        out.push_number("idle-timeout", self.idle_timeout);
        out.push_number("max-broker-session-time", self.max_broker_session_time);
        out.push_secret("csrf-token", self.csrf_token.as_ref());
    }
}

/// The answer to `get-authentication-status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationStatus {
    /// The state of single sign-on; `unlocked` is the only one known.
    pub sso: String,
    /// Seconds until it locks; -1 for never.
    pub time_to_sso_lock: i64,
}

impl AuthenticationStatus {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        Ok(Self {
            sso: element.optional_word("sso").unwrap_or_default(),
            time_to_sso_lock: element.number("time-to-sso-lock")?.unwrap_or_default(),
        })
    }

    pub(super) fn write(&self, out: &mut Element) {
        out.push_leaf("sso", &self.sso);
        out.push_number("time-to-sso-lock", Some(self.time_to_sso_lock));
    }
}
