//! What the gateway asks while it signs a user in, and the answers: given beforehand, or asked of the user.

use crate::client::fault::Fault;
use crate::client::prompter::{Prompter, Question, Unanswered, is_yes};
use crate::client::words::{printable, printable_line};
use crate::control::screen::{Ask, DEFAULT_DOMAIN, PinChange, Screen, Securid, Submission, UserField, WindowsPassword};
use crate::types::Secret;

/// What was given before the gateway asked.
///
/// Password and passcode are used once: if the gateway does not take them, the user is asked.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The user's name; `DOMAIN\name` names the domain too.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The domain.
    pub domain: Option<String>,
    /// Whether the gateway's terms are accepted without a question. They are shown nevertheless.
    pub accept_disclaimer: bool,
}

/// Answers screens.
pub(super) struct Respondent<'a, P> {
    credentials: Credentials,
    prompter: &'a mut P,
    /// The gateway's words for why it asks again.
    error: Option<String>,
    /// The password of the last answer, which may turn out to have expired.
    password: Option<Secret>,
}

impl<'a, P: Prompter> Respondent<'a, P> {
    pub(super) fn new(credentials: Credentials, prompter: &'a mut P) -> Self {
        Self {
            credentials,
            prompter,
            error: None,
            password: None,
        }
    }

    /// Whoever answers for the user.
    pub(super) fn prompter(&mut self) -> &mut P {
        self.prompter
    }

    /// The answer to a screen.
    pub(super) async fn answer(&mut self, screen: Screen) -> Result<Submission, Fault> {
        self.error = None;
        for words in [screen.title, screen.text].into_iter().flatten() {
            self.prompter.show(&printable(&words));
        }
        match screen.ask {
            Ask::Disclaimer { text } => self.disclaimer(&text).await,
            Ask::WindowsPassword(screen) => self.windows_password(screen).await,
            Ask::WindowsPasswordExpired { error, .. } => self.password_expired(error).await,
            Ask::SecuridPasscode(screen) => self.passcode(screen).await,
            Ask::SecuridNextTokencode(screen) => self.tokencode(screen).await,
            Ask::SecuridPinChange(screen) => self.pin_change(screen).await,
            Ask::SecuridWait => {
                self.ask(Question::NextCode).await?;
                self.passcode(Securid::default()).await
            }
            // No certificate is at hand; the gateway goes on with its next method.
            Ask::CertAuth => Ok(Submission::CertAuth {
                accept: false,
                pin: Secret::new(""),
                reader: String::new(),
            }),
            Ask::Unknown { name, .. } => Err(Fault::UnknownScreen(name)),
        }
    }

    async fn disclaimer(&mut self, text: &str) -> Result<Submission, Fault> {
        self.prompter.show(&printable(text));
        let accept = self.credentials.accept_disclaimer || is_yes(&self.ask(Question::Disclaimer).await?);
        if accept {
            Ok(Submission::Disclaimer { accept })
        } else {
            Err(Fault::Declined)
        }
    }

    async fn windows_password(&mut self, screen: WindowsPassword) -> Result<Submission, Fault> {
        self.refused(screen.error.as_deref());
        let (user, named_domain) = self.user(screen.user).await?;
        let domain = self.domain(named_domain, &screen.domains).await?;
        let password = match self.credentials.password.take() {
            Some(password) => password,
            None => self.ask(Question::Password { user: user.clone() }).await?,
        };
        self.password = Some(password.clone());
        Ok(Submission::WindowsPassword { user, password, domain })
    }

    /// The user's name, and the domain if it stands before it.
    async fn user(&mut self, field: Option<UserField>) -> Result<(String, Option<String>), Fault> {
        let suggested = match field {
            Some(field) if field.readonly => return Ok((field.name, None)),
            field => field.map(|field| field.name),
        };
        let typed = match &self.credentials.user {
            Some(user) => user.clone(),
            None => {
                let typed = self
                    .ask(Question::User {
                        suggested: suggested.clone(),
                    })
                    .await?;
                Some(typed.expose().trim().to_owned())
                    .filter(|typed| !typed.is_empty())
                    .or(suggested)
                    .unwrap_or_default()
            }
        };
        Ok(match typed.split_once('\\') {
            Some((domain, user)) => (user.to_owned(), Some(domain.to_owned())),
            None => (typed, None),
        })
    }

    async fn domain(&mut self, named: Option<String>, offered: &[String]) -> Result<String, Fault> {
        if let Some(domain) = named.or_else(|| self.credentials.domain.clone()) {
            return Ok(domain);
        }
        match offered {
            [] => Ok(String::new()),
            [only] => Ok(only.clone()),
            offered if offered.iter().any(|domain| domain == DEFAULT_DOMAIN) => Ok(DEFAULT_DOMAIN.to_owned()),
            offered => {
                let typed = self
                    .ask(Question::Domain {
                        offered: offered.to_vec(),
                    })
                    .await?;
                Ok(typed.expose().trim().to_owned())
            }
        }
    }

    async fn password_expired(&mut self, error: Option<String>) -> Result<Submission, Fault> {
        match error {
            Some(error) => self.refused(Some(&error)),
            None => self.prompter.show("The password has expired. Choose a new one."),
        }
        let old = match self.password.take() {
            Some(password) => password,
            None => self.ask(Question::OldPassword).await?,
        };
        loop {
            let new = self.ask(Question::NewPassword).await?;
            let repeated = self.ask(Question::NewPasswordAgain).await?;
            if new == repeated {
                // If the new one is refused, the old one is asked for again by nobody.
                self.password = Some(old.clone());
                return Ok(Submission::WindowsPasswordExpired { old, new, repeated });
            }
            self.prompter.show("The two are not equal.");
        }
    }

    async fn passcode(&mut self, screen: Securid) -> Result<Submission, Fault> {
        self.refused(screen.error.as_deref());
        self.say(screen.message);
        let (user, _) = self.user(screen.user).await?;
        let label = screen.auth_label.or(screen.auth_type);
        let passcode = self.ask(Question::Passcode { label }).await?;
        Ok(Submission::SecuridPasscode { user, passcode })
    }

    async fn tokencode(&mut self, screen: Securid) -> Result<Submission, Fault> {
        self.refused(screen.error.as_deref());
        self.say(screen.message);
        let tokencode = self
            .ask(Question::Tokencode {
                challenge: screen.challenge,
            })
            .await?;
        Ok(Submission::SecuridNextTokencode { tokencode })
    }

    async fn pin_change(&mut self, screen: PinChange) -> Result<Submission, Fault> {
        self.refused(screen.error.as_deref());
        self.say(screen.message);
        if let Some(pin) = screen.pin1.filter(|_| !screen.user_selectable) {
            self.prompter
                .show(&format!("Your new PIN is {}", printable_line(pin.expose())));
            self.ask(Question::SystemPin).await?;
            return Ok(Submission::SecuridPinChange {
                pin1: pin.clone(),
                pin2: pin,
            });
        }
        loop {
            let pin1 = self.ask(Question::NewPin).await?;
            let pin2 = self.ask(Question::NewPinAgain).await?;
            if pin1 == pin2 {
                return Ok(Submission::SecuridPinChange { pin1, pin2 });
            }
            self.prompter.show("The two are not equal.");
        }
    }

    /// The gateway did not take the last answer.
    fn refused(&mut self, error: Option<&str>) {
        self.error = error.map(printable_line);
        if let Some(error) = &self.error {
            self.prompter.show(error);
        }
    }

    fn say(&mut self, message: Option<String>) {
        if let Some(message) = message {
            self.prompter.show(&printable(&message));
        }
    }

    /// Asks. Without an answer, a refusal of what was given before is the fault, and not the missing terminal.
    async fn ask(&mut self, question: Question) -> Result<Secret, Fault> {
        match (self.prompter.ask(&question).await, self.error.take()) {
            (Ok(answer), _) => Ok(answer),
            (Err(Unanswered::NoTerminal), Some(words)) => Err(Fault::SignIn { words }),
            (Err(why), _) => Err(Fault::Unanswered { why, question }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::model::Script;

    fn credentials() -> Credentials {
        Credentials {
            user: Some("ann".into()),
            password: Some(Secret::new("plum")),
            domain: Some("LAB".into()),
            accept_disclaimer: true,
        }
    }

    fn password_screen(domains: &[&str], error: Option<&str>) -> Screen {
        let domains = domains.iter().map(|&domain| domain.to_owned()).collect();
        Ask::WindowsPassword(WindowsPassword {
            domains,
            error: error.map(str::to_owned),
            ..WindowsPassword::default()
        })
        .into()
    }

    fn password_answer(user: &str, password: &str, domain: &str) -> Submission {
        Submission::WindowsPassword {
            user: user.into(),
            password: Secret::new(password),
            domain: domain.into(),
        }
    }

    fn password_of(user: &str) -> Question {
        Question::Password { user: user.into() }
    }

    async fn answers(
        credentials: Credentials,
        screens: impl IntoIterator<Item = Screen>,
        script: impl IntoIterator<Item = (Question, &'static str)>,
    ) -> (Vec<Result<Submission, Fault>>, Vec<String>) {
        let mut script = Script::new(script);
        let mut respondent = Respondent::new(credentials, &mut script);
        let mut answers = Vec::new();
        for screen in screens {
            answers.push(respondent.answer(screen).await);
        }
        assert!(script.answers.is_empty(), "not asked: {:?}", script.answers);
        (answers, script.shown)
    }

    async fn answer(
        credentials: Credentials,
        screen: impl Into<Screen>,
        script: impl IntoIterator<Item = (Question, &'static str)>,
    ) -> Result<Submission, Fault> {
        answers(credentials, [screen.into()], script).await.0.remove(0)
    }

    #[tokio::test]
    async fn what_was_given_is_not_asked_and_used_once() {
        let screens = [
            password_screen(&["LAB", "CORP"], None),
            password_screen(&["LAB"], Some("Try\x1b again.")),
        ];
        let (answers, shown) = answers(credentials(), screens, [(password_of("ann"), "pear")]).await;
        assert_eq!(answers[0].as_ref().unwrap(), &password_answer("ann", "plum", "LAB"));
        assert_eq!(answers[1].as_ref().unwrap(), &password_answer("ann", "pear", "LAB"));
        assert_eq!(shown, ["Try again."]);
    }

    #[tokio::test]
    async fn without_a_terminal_a_wrong_password_is_the_fault_and_not_the_terminal() {
        let screens = [password_screen(&[], None), password_screen(&[], Some("Wrong."))];
        let (answers, _) = answers(credentials(), screens, []).await;
        assert!(
            matches!(&answers[1], Err(Fault::SignIn { words }) if words == "Wrong."),
            "{answers:?}"
        );
        let nothing = answer(Credentials::default(), password_screen(&[], None), [])
            .await
            .unwrap_err();
        assert!(nothing.to_string().contains("--user"), "{nothing}");
    }

    #[tokio::test]
    async fn user_and_domain_are_asked_for_where_they_are_open() {
        let user = Question::User { suggested: None };
        let domain = Question::Domain {
            offered: vec!["LAB".into(), "CORP".into()],
        };
        let script = [(user.clone(), " ann "), (domain, "CORP"), (password_of("ann"), "plum")];
        let submitted = answer(Credentials::default(), password_screen(&["LAB", "CORP"], None), script).await;
        assert_eq!(submitted.unwrap(), password_answer("ann", "plum", "CORP"));

        let script = [(user, "HOME\\ann"), (password_of("ann"), "plum")];
        let submitted = answer(Credentials::default(), password_screen(&["LAB", "CORP"], None), script).await;
        assert_eq!(
            submitted.unwrap(),
            password_answer("ann", "plum", "HOME"),
            "a named domain goes before the list"
        );

        let only_password = Credentials {
            user: Some("ann".into()),
            ..Credentials::default()
        };
        for (domains, expected) in [
            (vec![], ""),
            (vec!["LAB"], "LAB"),
            (vec!["LAB", DEFAULT_DOMAIN], DEFAULT_DOMAIN),
        ] {
            let script = [(password_of("ann"), "plum")];
            let submitted = answer(only_password.clone(), password_screen(&domains, None), script).await;
            assert_eq!(submitted.unwrap(), password_answer("ann", "plum", expected));
        }
    }

    #[tokio::test]
    async fn a_name_that_the_gateway_fixed_is_kept_and_one_that_it_suggests_can_be_taken() {
        let screen = |readonly| {
            let user = Some(UserField {
                name: "bob".into(),
                readonly,
            });
            Ask::WindowsPassword(WindowsPassword {
                user,
                ..WindowsPassword::default()
            })
        };
        let fixed = answer(credentials(), screen(true), []).await.unwrap();
        assert_eq!(fixed, password_answer("bob", "plum", "LAB"));
        let suggested = Question::User {
            suggested: Some("bob".into()),
        };
        let script = [(suggested, ""), (password_of("bob"), "plum")];
        let taken = answer(Credentials::default(), screen(false), script).await.unwrap();
        assert_eq!(taken, password_answer("bob", "plum", ""));
    }

    #[tokio::test]
    async fn terms_are_shown_and_accepted_or_that_is_the_end() {
        let terms = || Screen {
            title: Some("Terms".into()),
            text: None,
            ask: Ask::Disclaimer {
                text: "Be\x07 good.".into(),
            },
        };
        let (given, shown) = answers(credentials(), [terms()], []).await;
        assert_eq!(given[0].as_ref().unwrap(), &Submission::Disclaimer { accept: true });
        assert_eq!(shown, ["Terms", "Be good."]);
        let yes = answer(Credentials::default(), terms(), [(Question::Disclaimer, "yes")]).await;
        assert_eq!(yes.unwrap(), Submission::Disclaimer { accept: true });
        let no = answer(Credentials::default(), terms(), [(Question::Disclaimer, "no")]).await;
        assert!(matches!(no, Err(Fault::Declined)));
        let nobody = answer(Credentials::default(), terms(), []).await.unwrap_err();
        assert!(nobody.to_string().contains("--accept-disclaimer"), "{nobody}");
    }

    #[tokio::test]
    async fn an_expired_password_is_changed_with_the_one_that_was_just_given() {
        let expired = |error: Option<&str>| {
            Screen::from(Ask::WindowsPasswordExpired {
                user: None,
                error: error.map(str::to_owned),
            })
        };
        let screens = [password_screen(&[], None), expired(None), expired(Some("Too short."))];
        let script = [
            (Question::NewPassword, "a"),
            (Question::NewPasswordAgain, "b"),
            (Question::NewPassword, "c"),
            (Question::NewPasswordAgain, "c"),
            (Question::NewPassword, "longer"),
            (Question::NewPasswordAgain, "longer"),
        ];
        let (answers, shown) = answers(credentials(), screens, script).await;
        let changed = |new: &str| Submission::WindowsPasswordExpired {
            old: Secret::new("plum"),
            new: Secret::new(new),
            repeated: Secret::new(new),
        };
        assert_eq!(answers[1].as_ref().unwrap(), &changed("c"));
        assert_eq!(answers[2].as_ref().unwrap(), &changed("longer"));
        assert_eq!(shown[1..], ["The two are not equal.", "Too short."]);
    }

    #[tokio::test]
    async fn codes_and_challenges_are_asked_for_by_the_names_that_the_gateway_gives() {
        let securid = Securid {
            message: Some("Look at your phone.".into()),
            auth_label: Some("Token".into()),
            challenge: Some("Code 7?".into()),
            ..Securid::default()
        };
        let passcode = Question::Passcode {
            label: Some("Token".into()),
        };
        let tokencode = Question::Tokencode {
            challenge: Some("Code 7?".into()),
        };
        let screens = [
            Ask::SecuridPasscode(securid.clone()).into(),
            Ask::SecuridNextTokencode(securid).into(),
            Ask::SecuridWait.into(),
        ];
        let script = [
            (passcode, "123456"),
            (tokencode, "42"),
            (Question::NextCode, ""),
            (Question::Passcode { label: None }, "654321"),
        ];
        let (answers, shown) = answers(credentials(), screens, script).await;
        let submitted: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let passcode = |code: &str| Submission::SecuridPasscode {
            user: "ann".into(),
            passcode: Secret::new(code),
        };
        let tokencode = Submission::SecuridNextTokencode {
            tokencode: Secret::new("42"),
        };
        assert_eq!(submitted, [passcode("123456"), tokencode, passcode("654321")]);
        assert_eq!(shown, ["Look at your phone."; 2]);
    }

    #[tokio::test]
    async fn a_pin_is_chosen_by_the_user_or_by_the_system() {
        let pin = |user_selectable, pin1: Option<&str>| {
            Ask::SecuridPinChange(PinChange {
                user_selectable,
                pin1: pin1.map(Secret::new),
                message: None,
                error: None,
            })
        };
        let submitted = |text: &str| Submission::SecuridPinChange {
            pin1: Secret::new(text),
            pin2: Secret::new(text),
        };
        let script = [
            (Question::NewPin, "1"),
            (Question::NewPinAgain, "2"),
            (Question::NewPin, "3"),
            (Question::NewPinAgain, "3"),
        ];
        assert_eq!(
            answer(credentials(), pin(true, Some("9999")), script).await.unwrap(),
            submitted("3")
        );
        let given = answer(credentials(), pin(false, Some("9999")), [(Question::SystemPin, "")]).await;
        assert_eq!(given.unwrap(), submitted("9999"));
    }

    #[tokio::test]
    async fn what_the_client_cannot_do_is_declined_or_named() {
        let certificate = answer(credentials(), Ask::CertAuth, []).await.unwrap();
        assert!(matches!(certificate, Submission::CertAuth { accept: false, .. }));
        let unknown = answer(
            credentials(),
            Ask::Unknown {
                name: "saml\x1b".into(),
                params: vec![],
            },
            [],
        )
        .await
        .unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "the gateway asks for \"saml\", which this client cannot do"
        );
    }
}
