//! What changes hands: slots that move to another owner, and shares that come home to the owner of their key.

mod announce;
mod bytes;
pub mod shares;
pub mod slots;
