//! Which desktop the user means.

use super::fault::Fault;
use super::words::printable_line;
use crate::control::operation::Desktop;

/// The desktop that `wanted` means: the one of that id, or else the only one of that name, in any case. Without a wish,
/// the only one there is.
///
/// # Errors
/// There is no such desktop, or more than one.
pub fn choose<'a>(desktops: &'a [Desktop], wanted: Option<&str>) -> Result<&'a Desktop, Fault> {
    let fault = || Fault::Choice {
        wanted: wanted.map(printable_line),
        offered: desktops.iter().map(shown).collect(),
    };
    let Some(wanted) = wanted else {
        return match desktops {
            [] => Err(Fault::NoDesktop),
            [only] => Ok(only),
            _ => Err(fault()),
        };
    };
    if let Some(desktop) = desktops.iter().find(|desktop| desktop.id == wanted) {
        return Ok(desktop);
    }
    let wanted = wanted.to_lowercase();
    let mut named = desktops.iter().filter(|desktop| desktop.name.to_lowercase() == wanted);
    match (named.next(), named.next()) {
        (Some(desktop), None) => Ok(desktop),
        _ => Err(fault()),
    }
}

fn shown(desktop: &Desktop) -> String {
    format!("{} ({})", printable_line(&desktop.name), printable_line(&desktop.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desktop(id: &str, name: &str) -> Desktop {
        Desktop {
            id: id.to_owned(),
            name: name.to_owned(),
            ..Desktop::default()
        }
    }

    #[test]
    fn an_id_goes_before_a_name_and_names_are_read_in_any_case() {
        let desktops = [desktop("a", "b"), desktop("b", "Shell")];
        assert_eq!(choose(&desktops, Some("b")).unwrap().id, "b");
        assert_eq!(choose(&desktops, Some("shell")).unwrap().id, "b");
    }

    #[test]
    fn the_only_desktop_needs_no_wish() {
        assert_eq!(choose(&[desktop("a", "b")], None).unwrap().id, "a");
        assert!(matches!(choose(&[], None), Err(Fault::NoDesktop)));
        assert!(matches!(
            choose(&[desktop("a", "x"), desktop("b", "y")], None),
            Err(Fault::Choice { wanted: None, .. })
        ));
    }

    #[test]
    fn a_name_that_two_desktops_have_is_no_choice() {
        let desktops = [desktop("a", "lab"), desktop("b", "Lab\x1b")];
        let fault = choose(&[desktops[0].clone(), desktop("b", "Lab")], Some("lab")).unwrap_err();
        assert!(fault.to_string().contains("lab (a)"), "{fault}");
        let fault = choose(&desktops, Some("none")).unwrap_err();
        assert!(fault.to_string().ends_with("lab (a)\n  Lab (b)"), "{fault}");
    }
}
