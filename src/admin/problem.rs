//! Why a call is refused: one JSON document, whatever went wrong (RFC 9457).

use std::borrow::Cow;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::api::Problem;

/// A call that is refused.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    detail: Cow<'static, str>,
}

impl Refused {
    /// Says what is wrong and what to do.
    pub(super) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }
}

impl From<JsonRejection> for Refused {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), format!("{}.", rejection.body_text()))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let problem = Problem {
            title: self.status.canonical_reason().unwrap_or_default().to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.into_owned(),
        };
        let mut response = (self.status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
        }
        if matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS) {
            // Each further guess costs its sender a handshake.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
