//! Requests, replies and screens at random: every one that the types allow and the wire can carry.

use portcullis::control::operation::{
    AdditionalListener, Answer, Application, AuthenticationStatus, Body, Configuration, Connection, Desktop,
    DesktopState, Environment, ErrorCode, Failure, FileType, FrameworkChannel, Icon, Info, Kind, Launch, LaunchItems,
    LaunchItemsRequest, LaunchRequest, OfferedProtocol, Operation, Outcome, Preference, Quic, RegisteredFileTypes,
    SignedIn, SupportedType, Tunnel, TunnelConnection, TunnelRequest,
};
use portcullis::control::screen::{
    Ask, Param, PinChange, Screen, Securid, Submission, SubmittedParam, UserField, WindowsPassword,
};
use portcullis::control::xml::{Attribute, Element, Node, is_text};
use portcullis::types::Secret;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Characters that have gone wrong somewhere before.
const TRAPS: &[&str] = &[
    "&", "<", ">", "]]>", "&amp;", "\"", "'", "\r", "\n", "\t", "\r\n", " ", "ä", "ß", "€", "🦀", "\u{85}", "\u{2028}",
];

/// Any text that XML can carry.
pub(crate) fn xml_text() -> impl Strategy<Value = String> {
    let trap = prop::sample::select(TRAPS).prop_map(str::to_owned);
    let any = any::<char>()
        .prop_map(String::from)
        .prop_filter("not XML", |text| is_text(text));
    vec(prop_oneof![3 => trap, 1 => any, 3 => "[ -~]{0,3}"], 0..8).prop_map(|pieces| pieces.concat())
}

fn filled() -> impl Strategy<Value = String> {
    xml_text().prop_filter("empty", |text| !text.is_empty())
}

fn word() -> impl Strategy<Value = String> {
    "[A-Za-z0-9][A-Za-z0-9._*&<>-]{0,11}"
}

/// A name that is none of those that are known.
fn unknown() -> impl Strategy<Value = String> {
    "(get-|do-|kill-)?x-[a-z0-9]{1,8}"
}

fn secret() -> impl Strategy<Value = Secret> {
    xml_text().prop_map(Secret::new)
}

fn filled_secret() -> impl Strategy<Value = Secret> {
    filled().prop_map(Secret::new)
}

/// A tree as the parser would make it: no empty runs of text and no two in a row.
pub(crate) fn tree() -> impl Strategy<Value = Element> {
    let name = || "[a-zA-Z_:ä][a-zA-Z0-9._:·-]{0,8}";
    let attributes = move || vec((name(), xml_text()), 0..4);
    let leaf = (name(), attributes()).prop_map(|(name, attributes)| Plan::Element(name, attributes, Vec::new()));
    let plan = leaf.prop_recursive(4, 24, 4, move |inner| {
        let child = prop_oneof![xml_text().prop_map(Plan::Text), inner];
        (name(), attributes(), vec(child, 0..5))
            .prop_map(|(name, attributes, children)| Plan::Element(name, attributes, children))
    });
    plan.prop_map(|plan| Element::new("root").with(grow(&plan)))
}

/// What a tree is grown from. It can be cloned, as strategies demand; a tree cannot.
#[derive(Clone, Debug)]
enum Plan {
    Text(String),
    Element(String, Vec<(String, String)>, Vec<Self>),
}

fn grow(plan: &Plan) -> Element {
    let Plan::Element(name, attributes, children) = plan else {
        return Element::new("text");
    };
    let mut element = Element::new(name.clone());
    for (name, value) in attributes {
        if element.attributes.iter().all(|other| other.name != *name) {
            element.attributes.push(Attribute {
                name: name.clone(),
                value: value.clone(),
            });
        }
    }
    for child in children {
        match (child, element.children.last()) {
            (Plan::Text(text), Some(Node::Element(_)) | None) if !text.is_empty() => {
                element.children.push(Node::Text(text.clone()));
            }
            (Plan::Text(_), _) => {}
            (Plan::Element(..), _) => element.push(grow(child)),
        }
    }
    element
}

/// Text made of the pieces of XML, mostly not well formed.
pub(crate) fn near_xml() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "<a>",
        "</a>",
        "<a/>",
        "<b c='d'>",
        "</b>",
        "<b c=\"d\" e='&amp;'/>",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "--",
        "<?p",
        "?>",
        "<?xml version='1.0'?>",
        "<!DOCTYPE a>",
        "&lt;",
        "&#13;",
        "&#x0;",
        "&x;",
        "&",
        ";",
        "<",
        ">",
        "/",
        "'",
        "\"",
        "=",
        " ",
        "\r\n",
        "text",
        "ä",
        "\u{feff}",
        "\0",
        "🦀",
        "]]",
        "<broker version='4.5'>",
        "</broker>",
    ];
    vec(prop::sample::select(PIECES), 0..24).prop_map(|pieces| pieces.concat())
}

pub(crate) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), 1..6).prop_map(|mut operations| {
        let mut seen = Vec::new();
        operations.retain(|operation| {
            let new = !seen.contains(&operation.kind());
            seen.push(operation.kind());
            new
        });
        operations
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let bare = prop::sample::select(vec![
        Operation::GetConfiguration,
        Operation::ConnectPrepare,
        Operation::GetUserGlobalPreferences,
        Operation::Logout,
        Operation::GetAuthenticationStatus,
        Operation::Lock,
        Operation::SetLastUserActivity,
        Operation::AddClientInfo,
    ]);
    prop_oneof![
        bare,
        xml_text().prop_map(|locale| Operation::SetLocale { locale }),
        (submission(), environment()).prop_map(|(submission, environment)| Operation::SubmitAuthentication {
            submission,
            environment
        }),
        tunnel_request().prop_map(Operation::GetTunnelConnection),
        tunnel_request().prop_map(Operation::GetTunnelConnectionRedirect),
        words().prop_map(|supported_protocols| Operation::GetDesktops { supported_protocols }),
        launch_items_request().prop_map(Operation::GetLaunchItems),
        launch_request().prop_map(Operation::GetDesktopConnection),
        launch_request().prop_map(Operation::GetDesktopConnectionRedirect),
        launch_request().prop_map(Operation::GetApplicationConnection),
        launch_request().prop_map(Operation::GetApplicationSessionConnection),
        preferences().prop_map(|preferences| Operation::SetUserGlobalPreferences { preferences }),
        (filled(), preferences()).prop_map(|(desktop_id, preferences)| Operation::SetUserDesktopPreferences {
            desktop_id,
            preferences
        }),
        filled().prop_map(|session_id| Operation::KillSession { session_id }),
        filled().prop_map(|desktop_id| Operation::ResetDesktop { desktop_id }),
        filled().prop_map(|desktop_id| Operation::RollbackCheckoutDesktop { desktop_id }),
        unknown().prop_map(|name| Operation::Unknown { name }),
    ]
}

fn words() -> impl Strategy<Value = Vec<String>> {
    vec(word(), 0..4)
}

fn environment() -> impl Strategy<Value = Environment> {
    vec(
        (xml_text(), xml_text()).prop_map(|(name, value)| Info { name, value }),
        0..4,
    )
    .prop_map(Environment)
}

fn preferences() -> impl Strategy<Value = Vec<Preference>> {
    vec(
        (xml_text(), xml_text()).prop_map(|(name, value)| Preference { name, value }),
        0..4,
    )
}

fn tunnel_request() -> impl Strategy<Value = TunnelRequest> {
    (any::<bool>(), any::<bool>(), words(), any::<bool>()).prop_map(
        |(bypass_tunnel, multi_connection_aware, thumbprint_algorithms, quic)| TunnelRequest {
            bypass_tunnel,
            multi_connection_aware,
            thumbprint_algorithms,
            quic,
        },
    )
}

fn launch_items_request() -> impl Strategy<Value = LaunchItemsRequest> {
    let types = vec(
        (word(), words()).prop_map(|(name, protocols)| SupportedType { name, protocols }),
        0..3,
    );
    (
        option::of(words()),
        option::of(types),
        any::<bool>(),
        option::of(words()),
        environment(),
    )
        .prop_map(
            |(desktops, applications, application_sessions, shadow_sessions, environment)| LaunchItemsRequest {
                desktops,
                applications,
                application_sessions,
                shadow_sessions,
                environment,
            },
        )
}

fn launch_request() -> impl Strategy<Value = LaunchRequest> {
    (
        filled(),
        option::of(word()),
        any::<bool>(),
        any::<bool>(),
        environment(),
    )
        .prop_map(|(id, protocol, quic, preconnection, environment)| LaunchRequest {
            id,
            protocol,
            quic,
            preconnection,
            environment,
        })
}

pub(crate) fn submission() -> impl Strategy<Value = Submission> {
    let param = (word(), vec(secret(), 0..3)).prop_map(|(name, values)| SubmittedParam { name, values });
    prop_oneof![
        any::<bool>().prop_map(|accept| Submission::Disclaimer { accept }),
        (xml_text(), secret(), xml_text()).prop_map(|(user, password, domain)| Submission::WindowsPassword {
            user,
            password,
            domain
        }),
        (secret(), secret(), secret()).prop_map(|(old, new, repeated)| Submission::WindowsPasswordExpired {
            old,
            new,
            repeated
        }),
        (xml_text(), secret()).prop_map(|(user, passcode)| Submission::SecuridPasscode { user, passcode }),
        secret().prop_map(|tokencode| Submission::SecuridNextTokencode { tokencode }),
        (secret(), secret()).prop_map(|(pin1, pin2)| Submission::SecuridPinChange { pin1, pin2 }),
        (any::<bool>(), secret(), xml_text()).prop_map(|(accept, pin, reader)| Submission::CertAuth {
            accept,
            pin,
            reader
        }),
        (unknown(), vec(param, 0..3)).prop_map(|(name, params)| Submission::Unknown { name, params }),
    ]
}

pub(crate) fn screen() -> impl Strategy<Value = Screen> {
    (option::of(filled()), option::of(filled()), ask()).prop_map(|(title, text, ask)| Screen { title, text, ask })
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        filled().prop_map(|text| Ask::Disclaimer { text }),
        (
            user(),
            vec(filled(), 0..3),
            option::of(filled()),
            option::of(any::<i64>())
        )
            .prop_map(|(user, domains, error, credential_cache_timeout)| Ask::WindowsPassword(
                WindowsPassword {
                    user,
                    domains,
                    error,
                    credential_cache_timeout
                }
            )),
        (user(), option::of(filled())).prop_map(|(user, error)| Ask::WindowsPasswordExpired { user, error }),
        securid().prop_map(|securid| Ask::SecuridPasscode(Securid {
            challenge: None,
            ..securid
        })),
        securid().prop_map(Ask::SecuridNextTokencode),
        (
            any::<bool>(),
            filled_secret(),
            option::of(filled()),
            option::of(filled())
        )
            .prop_map(
                |(user_selectable, pin1, message, error)| Ask::SecuridPinChange(PinChange {
                    user_selectable,
                    pin1: Some(pin1),
                    message,
                    error
                })
            ),
        Just(Ask::SecuridWait),
        Just(Ask::CertAuth),
        (unknown(), vec(param(), 0..3)).prop_map(|(name, params)| Ask::Unknown { name, params }),
    ]
}

fn user() -> impl Strategy<Value = Option<UserField>> {
    option::of((filled(), any::<bool>()).prop_map(|(name, readonly)| UserField { name, readonly }))
}

fn securid() -> impl Strategy<Value = Securid> {
    let text = || option::of(filled());
    (user(), text(), text(), text(), text(), text(), text()).prop_map(
        |(user, error, message, auth_type, auth_subtype, auth_label, challenge)| Securid {
            user,
            error,
            message,
            auth_type,
            auth_subtype,
            auth_label,
            challenge,
        },
    )
}

fn param() -> impl Strategy<Value = Param> {
    (word(), any::<bool>(), vec(filled(), 0..3)).prop_map(|(name, readonly, values)| Param { name, readonly, values })
}

pub(crate) fn answers() -> impl Strategy<Value = Vec<Answer>> {
    vec(answer(), 0..5)
}

fn answer() -> impl Strategy<Value = Answer> {
    let kinds = prop::sample::select(Kind::ALL.to_vec());
    prop_oneof![
        6 => good_answer(),
        1 => (kinds.clone(), failure()).prop_map(|(kind, failure)| Answer::failed(kind, failure)),
        1 => kinds.prop_map(|kind| Answer { kind, outcome: Outcome::NotExecuted }),
        1 => screen().prop_map(|screen| Answer {
            kind: Kind::SubmitAuthentication,
            outcome: Outcome::Partial(screen)
        }),
    ]
}

pub(crate) fn failure() -> impl Strategy<Value = Failure> {
    let code = prop_oneof![
        prop::sample::select(vec![
            ErrorCode::NotAuthenticated,
            ErrorCode::TunnelError,
            ErrorCode::Busy
        ]),
        word().prop_map(|code| ErrorCode::of(&code)),
    ];
    (code, xml_text(), xml_text()).prop_map(|(code, message, user_message)| Failure {
        code,
        message,
        user_message,
    })
}

fn good_answer() -> impl Strategy<Value = Answer> {
    let ok = |kind: Kind| move |body| Answer::ok(kind.clone(), body);
    let bare = vec![
        Kind::SetLocale,
        Kind::ConnectPrepare,
        Kind::KillSession,
        Kind::Logout,
        Kind::AddClientInfo,
    ];
    let tunnels = vec![Kind::GetTunnelConnection, Kind::GetTunnelConnectionRedirect];
    let launches = vec![Kind::GetDesktopConnection, Kind::GetApplicationConnection];
    let preferring = vec![Kind::GetUserGlobalPreferences, Kind::SetUserGlobalPreferences];
    let select = prop::sample::select::<Kind>;
    prop_oneof![
        select(bare).prop_map(|kind| Answer::ok(kind, Body::Empty)),
        "x-[a-z]{1,8}".prop_map(|name| Answer::ok(Kind::Unknown(name), Body::Empty)),
        configuration()
            .prop_map(Body::Configuration)
            .prop_map(ok(Kind::GetConfiguration)),
        signed_in()
            .prop_map(Body::SignedIn)
            .prop_map(ok(Kind::SubmitAuthentication)),
        (select(tunnels), tunnel()).prop_map(|(kind, tunnel)| Answer::ok(kind, Body::Tunnel(tunnel))),
        vec(desktop(), 0..3)
            .prop_map(Body::Desktops)
            .prop_map(ok(Kind::GetDesktops)),
        launch_items()
            .prop_map(Body::LaunchItems)
            .prop_map(ok(Kind::GetLaunchItems)),
        (select(launches), launch()).prop_map(|(kind, launch)| Answer::ok(kind, Body::Launch(launch))),
        (select(preferring), preferences()).prop_map(|(kind, list)| Answer::ok(kind, Body::Preferences(list))),
        (filled(), preferences())
            .prop_map(|(desktop_id, preferences)| Body::DesktopPreferences {
                desktop_id,
                preferences
            })
            .prop_map(ok(Kind::SetUserDesktopPreferences)),
        (word(), any::<i64>())
            .prop_map(|(sso, time_to_sso_lock)| AuthenticationStatus { sso, time_to_sso_lock })
            .prop_map(Body::AuthenticationStatus)
            .prop_map(ok(Kind::GetAuthenticationStatus)),
    ]
}

fn configuration() -> impl Strategy<Value = Configuration> {
    (option::of(screen()), option::of(word()), vec(param(), 0..3)).prop_map(
        |(screen, broker_guid, client_configuration)| Configuration {
            screen,
            broker_guid,
            client_configuration,
        },
    )
}

fn signed_in() -> impl Strategy<Value = SignedIn> {
    let flag = || option::of(any::<bool>());
    let number = || option::of(any::<i64>());
    let texts = (option::of(filled()), option::of(filled_secret()));
    (texts, flag(), flag(), flag(), number(), number(), number(), number()).prop_map(
        |((user_sid, csrf_token), sso, suspend, removal, cache, activity, idle, time)| SignedIn {
            user_sid,
            offline_sso_disabled: sso,
            offline_sso_cache_timeout: cache,
            logout_on_host_suspend: suspend,
            logout_on_cert_removal: removal,
            user_activity_interval: activity,
            idle_timeout: idle,
            max_broker_session_time: time,
            csrf_token,
        },
    )
}

fn tunnel() -> impl Strategy<Value = TunnelConnection> {
    let tunnel = (
        "[A-Za-z0-9._~=-]{1,100}",
        word(),
        option::of(word()),
        any::<i64>(),
        any::<u16>(),
        option::of((any::<u16>(), "[A-Za-z0-9._~=-]{1,100}")),
    );
    let tunnel = tunnel.prop_map(
        |(connection_id, server1, server2, generation, status_port, quic)| Tunnel {
            connection_id: Secret::new(connection_id),
            server1,
            server2,
            generation,
            status_port,
            quic: quic.map(|(port, token)| Quic {
                port,
                token: Secret::new(token),
            }),
        },
    );
    prop_oneof![
        Just(TunnelConnection::Bypass),
        tunnel.prop_map(TunnelConnection::Tunnel)
    ]
}

fn desktop() -> impl Strategy<Value = Desktop> {
    let state = prop_oneof![
        Just(DesktopState::Idle),
        Just(DesktopState::Connected),
        Just(DesktopState::Disconnected),
        "x[a-z]{1,8}".prop_map(DesktopState::Other),
    ];
    let texts = (filled(), xml_text(), option::of(word()), state, option::of(filled()));
    (texts, offered(), any::<[bool; 6]>(), preferences()).prop_map(
        |((id, name, kind, state, session_id), protocols, flags, preferences)| Desktop {
            id,
            name,
            kind,
            state,
            session_id,
            protocols,
            protocol_match: flags[0],
            reset_allowed: flags[1],
            reset_allowed_on_session: flags[2],
            in_maintenance_mode: flags[3],
            expired: flags[4],
            preferences,
            html_access_disabled: flags[5],
        },
    )
}

fn offered() -> impl Strategy<Value = Vec<OfferedProtocol>> {
    vec(
        (word(), any::<bool>()).prop_map(|(name, is_default)| OfferedProtocol { name, is_default }),
        0..3,
    )
}

fn launch_items() -> impl Strategy<Value = LaunchItems> {
    let desktops = option::of(vec(desktop(), 0..2));
    let applications = option::of(vec(application(), 0..2));
    (desktops, applications, any::<bool>(), any::<bool>()).prop_map(
        |(desktops, applications, application_sessions, shadow_sessions)| LaunchItems {
            desktops,
            applications,
            application_sessions,
            shadow_sessions,
        },
    )
}

fn application() -> impl Strategy<Value = Application> {
    let icon = (filled(), any::<u32>(), any::<u32>()).prop_map(|(path, width, height)| Icon { path, width, height });
    let file_type = |kind: BoxedStrategy<Option<String>>| {
        let file_type = (kind, xml_text(), option::of(filled()));
        vec(
            file_type.prop_map(|(kind, name, display_name)| FileType {
                kind,
                name,
                display_name,
            }),
            0..2,
        )
    };
    let file_types = (file_type(Just(None).boxed()), file_type(option::of(word()).boxed()));
    let text = || option::of(filled());
    let texts = (
        filled(),
        xml_text(),
        option::of(word()),
        text(),
        text(),
        text(),
        text(),
        option::of(word()),
    );
    (texts, vec(icon, 0..2), file_types, offered(), any::<[bool; 2]>()).prop_map(
        |(texts, icons, (extensions, others), protocols, flags)| {
            let (id, name, kind, origin_id, version, publisher, launch_path, multi_session_mode) = texts;
            Application {
                id,
                name,
                kind,
                origin_id,
                version,
                publisher,
                launch_path,
                icons,
                file_types: RegisteredFileTypes { extensions, others },
                protocol_match: flags[0],
                protocols,
                multi_session_mode,
                html_access_disabled: flags[1],
            }
        },
    )
}

fn launch() -> impl Strategy<Value = Launch> {
    prop_oneof![
        3 => connection().prop_map(Box::new).prop_map(Launch::Connect),
        1 => (filled(), option::of(filled_secret())).prop_map(|(url, token)| Launch::Redirect { url, token }),
    ]
}

fn connection() -> impl Strategy<Value = Connection> {
    let host = prop_oneof!["[a-z0-9.-]{1,12}", Just("2001:db8::7".to_owned())];
    let listener = (xml_text(), host, any::<u16>());
    let listener = listener.prop_map(|(name, host, port)| AdditionalListener { name, host, port });
    let channel = (option::of(filled_secret()), option::of(word()), option::of(word())).prop_map(
        |(ticket, thumbprint, thumbprint_algorithm)| FrameworkChannel {
            ticket,
            thumbprint,
            thumbprint_algorithm,
        },
    );
    let place = (xml_text(), word(), any::<u16>(), option::of(word()));
    let sign_on = (
        option::of(filled()),
        option::of(filled_secret()),
        option::of(filled()),
        option::of(filled_secret()),
    );
    let flags = (any::<[bool; 2]>(), any::<[Option<bool>; 3]>());
    let rest = (option::of(filled()), option::of(any::<i64>()), option::of(filled()));
    (place, sign_on, vec(listener, 0..3), channel, flags, rest).prop_map(
        |(place, sign_on, additional_listeners, framework_channel, (flags, options), rest)| Connection {
            id: place.0,
            address: place.1,
            port: place.2,
            protocol: place.3,
            user_name: sign_on.0,
            password: sign_on.1,
            domain_name: sign_on.2,
            token: sign_on.3,
            additional_listeners,
            framework_channel,
            enable_usb: flags[0],
            enable_mmr: flags[1],
            enable_usb_virtual_channel: options[0],
            enable_timing_profiler: options[1],
            action_id: rest.0,
            logoff_after_disconnect_minutes: rest.1,
            session_id: rest.2,
            new_connection_needed: options[2],
        },
    )
}
