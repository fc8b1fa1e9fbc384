//! The short and long forms of steps, such as `fail: 529` and `fail: {status: 529}`.

use crate::script::{CutStep, ExpectStep, FailStep, FailureCount, PlanItem, PlanStatus};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum PlanItemForm {
    Text(String),
    Whole {
        step: String,
        #[serde(default)]
        status: PlanStatus,
    },
}

impl From<PlanItemForm> for PlanItem {
    fn from(form: PlanItemForm) -> Self {
        match form {
            PlanItemForm::Text(step) => Self { step, status: PlanStatus::Pending },
            PlanItemForm::Whole { step, status } => Self { step, status },
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum ExpectForm {
    Text(String),
    Whole {
        text: String,
        #[serde(default)]
        new: bool,
    },
}

impl From<ExpectForm> for ExpectStep {
    fn from(form: ExpectForm) -> Self {
        match form {
            ExpectForm::Text(text) => Self { text, only_new: false },
            ExpectForm::Whole { text, new } => Self { text, only_new: new },
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum TimesForm {
    Count(u32),
    Word(Always),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Always {
    Always,
}

impl From<Option<TimesForm>> for FailureCount {
    fn from(form: Option<TimesForm>) -> Self {
        match form {
            None => Self::Count(1),
            Some(TimesForm::Count(count)) => Self::Count(count),
            Some(TimesForm::Word(Always::Always)) => Self::Always,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum FailForm {
    Status(u16),
    Whole {
        status: u16,
        retry_after: Option<u32>,
        kind: Option<String>,
        message: Option<String>,
        body: Option<Value>,
        times: Option<TimesForm>,
    },
}

impl From<FailForm> for FailStep {
    fn from(form: FailForm) -> Self {
        match form {
            FailForm::Status(status) => {
                Self { status, retry_after: None, kind: None, message: None, body: None, times: FailureCount::Count(1) }
            }
            FailForm::Whole { status, retry_after, kind, message, body, times } => {
                Self { status, retry_after, kind, message, body, times: times.into() }
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum CutForm {
    After(usize),
    Whole { after: usize, times: Option<TimesForm> },
}

impl From<CutForm> for CutStep {
    fn from(form: CutForm) -> Self {
        match form {
            CutForm::After(after) => Self { after_events: after, times: FailureCount::Count(1) },
            CutForm::Whole { after, times } => Self { after_events: after, times: times.into() },
        }
    }
}
