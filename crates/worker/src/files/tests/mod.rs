mod desk;
mod figures;
mod git;
pub mod patch;
mod property;
mod rules;
mod stories;
mod strange;
