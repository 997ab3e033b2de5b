//! The names of operations and of their answers.

use crate::control::envelope::Version;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $request:literal, $reply:literal, $since:ident;)*) => {
        /// Which operation it is.
        ///
        /// An answer's element has the operation's name without a leading `get-` or `do-`; names that begin otherwise
        /// stay as they are.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $variant,)*
            /// An operation that is not known here, by its name as the client wrote it.
            Unknown(String),
        }

        impl Kind {
            /// Every known kind.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name of the request's element.
            pub fn request_name(&self) -> &str {
                match self {
                    $(Self::$variant => $request,)*
                    Self::Unknown(name) => name,
                }
            }

            /// The name of the answer's element.
            pub fn reply_name(&self) -> &str {
                match self {
                    $(Self::$variant => $reply,)*
                    Self::Unknown(name) => reply_name(name),
                }
            }

            /// The version that is known to have it first; a client sends it to no server of a lower one.
            pub fn since(&self) -> Version {
                match self {
                    $(Self::$variant => Version::$since,)*
                    Self::Unknown(_) => Version::OLDEST,
                }
            }
        }
    };
}

kinds! {
    /// Names the user's language.
    SetLocale = "set-locale", "set-locale", V2_0;
    /// Asks for the first screen, or the one that is due.
    GetConfiguration = "get-configuration", "configuration", V1_0;
    /// Answers a screen.
    SubmitAuthentication = "do-submit-authentication", "submit-authentication", V1_0;
    /// Asks where the tunnel is opened.
    GetTunnelConnection = "get-tunnel-connection", "tunnel-connection", V1_0;
    /// The same after a redirect.
    GetTunnelConnectionRedirect = "get-tunnel-connection-redirect", "tunnel-connection-redirect", V15_0;
    /// Asks for the list of desktops.
    GetDesktops = "get-desktops", "desktops", V1_0;
    /// Asks for desktops and applications.
    GetLaunchItems = "get-launch-items", "launch-items", V9_0;
    /// Launches a desktop.
    GetDesktopConnection = "get-desktop-connection", "desktop-connection", V1_0;
    /// The same after a redirect.
    GetDesktopConnectionRedirect = "get-desktop-connection-redirect", "desktop-connection-redirect", V15_0;
    /// Launches an application.
    GetApplicationConnection = "get-application-connection", "application-connection", V9_0;
    /// Takes up an application session again.
    GetApplicationSessionConnection = "get-application-session-connection", "application-session-connection", V9_0;
    /// Announces a launch.
    ConnectPrepare = "do-connect-prepare", "connect-prepare", V15_0;
    /// Asks for the user's preferences.
    GetUserGlobalPreferences = "get-user-global-preferences", "user-global-preferences", V1_0;
    /// Changes the user's preferences.
    SetUserGlobalPreferences = "set-user-global-preferences", "set-user-global-preferences", V1_0;
    /// Changes the user's preferences for one desktop.
    SetUserDesktopPreferences = "set-user-desktop-preferences", "set-user-desktop-preferences", V1_0;
    /// Ends a desktop session.
    KillSession = "kill-session", "kill-session", V1_0;
    /// Resets a desktop.
    ResetDesktop = "reset-desktop", "reset-desktop", V2_0;
    /// Gives a checked-out desktop back.
    RollbackCheckoutDesktop = "rollback-checkout-desktop", "rollback-checkout-desktop", V4_5;
    /// Ends the session.
    Logout = "do-logout", "logout", V1_0;
    /// Asks whether single sign-on is unlocked.
    GetAuthenticationStatus = "get-authentication-status", "authentication-status", V15_0;
    /// Locks single sign-on.
    Lock = "do-lock", "lock", V15_0;
    /// The heartbeat.
    SetLastUserActivity = "set-last-user-activity", "set-last-user-activity", V15_0;
    /// Says more of the client.
    AddClientInfo = "add-client-info", "add-client-info", V15_0;
}

impl Kind {
    /// The kind whose request has that name, in any case.
    pub fn of_request(name: &str) -> Self {
        let known = Self::ALL
            .iter()
            .find(|kind| kind.request_name().eq_ignore_ascii_case(name));
        known.cloned().unwrap_or_else(|| Self::Unknown(name.to_owned()))
    }

    /// The kind whose answer has that name, in any case. An unknown one is taken as it is, for the prefix is lost.
    pub fn of_reply(name: &str) -> Self {
        let known = Self::ALL
            .iter()
            .find(|kind| kind.reply_name().eq_ignore_ascii_case(name));
        known.cloned().unwrap_or_else(|| Self::Unknown(name.to_owned()))
    }

    /// Whether it needs a signed-in session. What is not known here is answered without regard to that.
    pub fn needs_sign_in(&self) -> bool {
        !matches!(
            self,
            Self::SetLocale
                | Self::GetConfiguration
                | Self::SubmitAuthentication
                | Self::Logout
                | Self::AddClientInfo
                | Self::Unknown(_)
        )
    }
}

/// The answer's name for a request's name.
fn reply_name(request: &str) -> &str {
    ["get-", "do-"]
        .into_iter()
        .find_map(|prefix| strip_prefix(request, prefix))
        .unwrap_or(request)
}

/// The rest of `name` after a prefix in any case, unless nothing that could be a name is left.
fn strip_prefix<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    (start.eq_ignore_ascii_case(prefix) && rest.starts_with(|c: char| c.is_alphabetic() || c == '_')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_named_by_the_rule() {
        for kind in Kind::ALL {
            assert_eq!(kind.reply_name(), reply_name(kind.request_name()));
        }
        assert_eq!(Kind::of_request("GET-Weather").reply_name(), "Weather");
        assert_eq!(Kind::of_request("kill-weather").reply_name(), "kill-weather");
        assert_eq!(Kind::of_request("get-").reply_name(), "get-");
        assert_eq!(Kind::of_request("do-1").reply_name(), "do-1");
    }

    #[test]
    fn names_are_found_in_any_case_and_are_unlike() {
        for (place, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(&Kind::of_request(&kind.request_name().to_uppercase()), kind);
            assert_eq!(&Kind::of_reply(&kind.reply_name().to_uppercase()), kind);
            assert!(
                Kind::ALL[..place]
                    .iter()
                    .all(|other| other.reply_name() != kind.reply_name())
            );
        }
    }
}
