//! The list of desktops, for people and for scripts.

use serde_json::{Value, json};

use crate::client::{Session, printable_line};
use crate::control::operation::{Desktop, DesktopState};

/// The list as a table or as one JSON document.
pub(super) fn text(session: &Session, as_json: bool) -> String {
    if as_json {
        let document = document(&session.endpoint().to_string(), session.desktops());
        format!("{document:#}\n")
    } else {
        table(session.desktops())
    }
}

/// One desktop in a list to choose from.
pub(super) fn line(desktop: &Desktop) -> String {
    format!("{}  {}", printable_line(&desktop.name), protocols(desktop))
}

fn document(gateway: &str, desktops: &[Desktop]) -> Value {
    let desktop = |desktop: &Desktop| {
        let protocols: Vec<_> = desktop
            .protocols
            .iter()
            .map(|protocol| json!({"name": protocol.name, "default": protocol.is_default}))
            .collect();
        json!({
            "id": desktop.id,
            "name": desktop.name,
            "state": state(desktop),
            "maintenance": desktop.in_maintenance_mode,
            "protocols": protocols,
        })
    };
    json!({
        "schema": "portcullis.desktops.v1",
        "gateway": gateway,
        "desktops": desktops.iter().map(desktop).collect::<Vec<_>>(),
    })
}

fn table(desktops: &[Desktop]) -> String {
    let mut rows = vec![["NAME", "STATE", "PROTOCOLS", "ID"].map(str::to_owned)];
    rows.extend(desktops.iter().map(|desktop| {
        [
            printable_line(&desktop.name),
            state(desktop).to_owned(),
            protocols(desktop),
            printable_line(&desktop.id),
        ]
    }));
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [name, state, protocols, id] in &rows {
        let [a, b, c] = widths;
        text.push_str(&format!("{name:a$}  {state:b$}  {protocols:c$}  {id}\n"));
    }
    text
}

fn protocols(desktop: &Desktop) -> String {
    let names: Vec<_> = desktop
        .protocols
        .iter()
        .map(|protocol| printable_line(&protocol.name))
        .collect();
    names.join(" ")
}

fn state(desktop: &Desktop) -> &'static str {
    match desktop.state {
        _ if desktop.in_maintenance_mode => "maintenance",
        DesktopState::Idle => "idle",
        DesktopState::Connected => "connected",
        DesktopState::Disconnected => "disconnected",
        DesktopState::Other(_) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::operation::OfferedProtocol;

    fn desktops() -> [Desktop; 2] {
        let protocol = |name: &str, is_default| OfferedProtocol {
            name: name.into(),
            is_default,
        };
        [
            Desktop {
                id: "cn=shell".into(),
                name: "Shell".into(),
                protocols: vec![protocol("SSH", true), protocol("VNC", false)],
                ..Desktop::default()
            },
            Desktop {
                id: "cn=lab".into(),
                name: "Lab\x1b[1m 7".into(),
                state: DesktopState::Disconnected,
                protocols: vec![protocol("RDP", true)],
                ..Desktop::default()
            },
        ]
    }

    #[test]
    fn the_table_is_for_people() {
        let expected = "\
NAME      STATE         PROTOCOLS  ID
Shell     idle          SSH VNC    cn=shell
Lab[1m 7  disconnected  RDP        cn=lab
";
        assert_eq!(table(&desktops()), expected);
        assert_eq!(desktops().each_ref().map(line), ["Shell  SSH VNC", "Lab[1m 7  RDP"]);
    }

    #[test]
    fn the_document_is_for_scripts() {
        let document = document("gw:443", &desktops()[..1]);
        let expected = json!({
            "schema": "portcullis.desktops.v1",
            "gateway": "gw:443",
            "desktops": [{
                "id": "cn=shell",
                "name": "Shell",
                "state": "idle",
                "maintenance": false,
                "protocols": [{"name": "SSH", "default": true}, {"name": "VNC", "default": false}],
            }],
        });
        assert_eq!(document, expected);
    }
}
