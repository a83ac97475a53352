//! Messages to frames and back.
//!
//! Encoding always succeeds; whoever sends checks the frame against the cap. Decoding accepts exactly what encoding
//! produces: every count is checked against the bytes that are there, and nothing may be left over.

use bytes::{BufMut, BytesMut};

use super::WireError;
use super::body::{
    COPY_LEN_MIN, KEY_LEN_MIN, Reader, put_blob, put_copy, put_key, put_list, put_option, put_state, put_text, put_ttl,
};
use super::frame::{Frame, encode_frame};
use super::message::{
    AppliedIds, Batch, Call, Fate, Homecoming, Op, Outcome, Reply, Request, Response, SlotRange, Wants,
};
use crate::record::{Copy, KeyBuf};

/// Most copies in a [`Request::Share`] or [`Request::Replay`] and most answers in its response, whose smallest takes one byte on the wire
/// but a hundred in memory.
pub const SHARES_MAX: usize = 65_536;

mod kind {
    pub const PING: u8 = 0x01;
    pub const INCR: u8 = 0x02;
    pub const SET: u8 = 0x03;
    pub const DEL: u8 = 0x04;
    pub const EXPIRE: u8 = 0x05;
    pub const GET: u8 = 0x06;
    pub const REPLICATE: u8 = 0x07;
    pub const SYNC: u8 = 0x08;
    pub const CLAIM: u8 = 0x09;
    pub const ANNOUNCE: u8 = 0x0a;
    pub const SHARE: u8 = 0x0b;
    pub const RESOLVE: u8 = 0x0c;
    pub const FLUSH: u8 = 0x0d;
    pub const SET_NX: u8 = 0x0e;
    pub const APPEND: u8 = 0x0f;
    pub const CAS: u8 = 0x10;
    pub const FETCH: u8 = 0x11;
    pub const REPLAY: u8 = 0x12;

    pub const STANDING: u8 = 0x20;
    pub const DIGEST: u8 = 0x21;
    pub const OFFER: u8 = 0x22;

    pub const PONG: u8 = 0x81;
    pub const REPLY: u8 = 0x82;
    pub const NOT_OWNER: u8 = 0x83;
    pub const VOIDED: u8 = 0x84;
    pub const ACKED: u8 = 0x85;
    pub const PAGE: u8 = 0x86;
    pub const CLAIMED: u8 = 0x87;
    pub const DONE: u8 = 0x88;
    pub const SHARES: u8 = 0x89;
    pub const FATES: u8 = 0x8a;
    pub const ANNOUNCED: u8 = 0x8b;
    pub const ERROR: u8 = 0x8f;
    pub const STANDING_IS: u8 = 0xa0;
}

/// Appends `request` as a frame.
pub fn encode_request(id: u64, request: &Request, out: &mut BytesMut) {
    match request {
        Request::Ping => encode_frame(kind::PING, id, out, |_| ()),
        Request::Call(call) => encode_call(id, call, out),
        Request::Replicate(batch) => encode_frame(kind::REPLICATE, id, out, |out| {
            out.put_u64_le(batch.position);
            out.put_u64_le(batch.after);
            put_list(out, &batch.copies, put_copy);
            put_list(out, &batch.applied, |out, applied| {
                out.put_u64_le(applied.stream);
                put_ids(out, &applied.ids);
            });
        }),
        Request::Sync { cursor, slots, owned, wants } => encode_frame(kind::SYNC, id, out, |out| {
            out.put_u64_le(*cursor);
            put_slots(out, slots);
            out.put_u8((*owned).into());
            put_wants(out, wants.as_ref());
        }),
        Request::Fetch { keys, older } => encode_frame(kind::FETCH, id, out, |out| {
            out.put_u8((*older).into());
            put_list(out, keys, put_key);
        }),
        Request::Claim { slots, synced_to } => encode_frame(kind::CLAIM, id, out, |out| {
            out.put_u64_le(*synced_to);
            put_slots(out, slots);
        }),
        Request::Announce { slots, term } => encode_frame(kind::ANNOUNCE, id, out, |out| {
            put_slots(out, slots);
            out.put_u64_le(*term);
        }),
        Request::Share(copies) => encode_frame(kind::SHARE, id, out, |out| put_list(out, copies, put_copy)),
        Request::Replay(copies) => encode_frame(kind::REPLAY, id, out, |out| put_list(out, copies, put_copy)),
        Request::Resolve { stream, ids, of: (node_id, origin) } => encode_frame(kind::RESOLVE, id, out, |out| {
            out.put_u64_le(*stream);
            put_ids(out, ids);
            put_text(out, node_id);
            out.put_u64_le(*origin);
        }),
        Request::Standing => encode_frame(kind::STANDING, id, out, |_| ()),
        Request::Digest { small_max, slots } => encode_frame(kind::DIGEST, id, out, |out| {
            out.put_u32_le(*small_max);
            put_list(out, slots, |out, (slot, digest)| {
                out.put_u16_le(*slot);
                out.put_u64_le(*digest);
            });
        }),
        Request::Offer(copies) => encode_frame(kind::OFFER, id, out, |out| put_list(out, copies, put_copy)),
        Request::Flush { namespace } => encode_frame(kind::FLUSH, id, out, |out| put_blob(out, namespace)),
    }
}

fn encode_call(id: u64, Call { key, op }: &Call, out: &mut BytesMut) {
    match op {
        Op::Incr { deltas, ttl_ms } => encode_frame(kind::INCR, id, out, |out| {
            put_key(out, key);
            put_ttl(out, *ttl_ms);
            put_list(out, deltas, |out, delta| out.put_i64_le(*delta));
        }),
        Op::Set { value, ttl_ms } => encode_frame(kind::SET, id, out, |out| {
            put_key(out, key);
            put_ttl(out, *ttl_ms);
            put_blob(out, value);
        }),
        Op::SetNx { value, ttl_ms } => encode_frame(kind::SET_NX, id, out, |out| {
            put_key(out, key);
            put_ttl(out, *ttl_ms);
            put_blob(out, value);
        }),
        Op::Append { value } => encode_frame(kind::APPEND, id, out, |out| {
            put_key(out, key);
            put_blob(out, value);
        }),
        Op::Cas { expected, new, ttl_ms } => encode_frame(kind::CAS, id, out, |out| {
            put_key(out, key);
            put_ttl(out, *ttl_ms);
            put_option(out, expected.as_deref(), put_blob);
            put_option(out, new.as_deref(), put_blob);
        }),
        Op::Del => encode_frame(kind::DEL, id, out, |out| put_key(out, key)),
        Op::Expire { ttl_ms } => encode_frame(kind::EXPIRE, id, out, |out| {
            put_key(out, key);
            put_ttl(out, *ttl_ms);
        }),
        Op::Get { bytes } => encode_frame(kind::GET, id, out, |out| {
            put_key(out, key);
            out.put_u8((*bytes).into());
        }),
    }
}

/// The request in `frame`, with its id. The key and value share the frame's buffer.
///
/// Errors: every [`WireError`] but those of frames. After [`WireError::UnknownType`] the connection can go on.
pub fn decode_request(frame: Frame) -> Result<(u64, Request), WireError> {
    let (kind, id) = (frame.kind, frame.id);
    let mut reader = Reader::new(frame);
    let r = &mut reader;
    let request = match kind {
        kind::PING => Request::Ping,
        kind::INCR => call(r.key()?, {
            let ttl_ms = r.option(Reader::u64)?;
            let deltas = r.list(8, Reader::i64)?;
            if deltas.is_empty() {
                return Err(r.invalid("list of deltas"));
            }
            Op::Incr { deltas, ttl_ms }
        }),
        kind::SET => call(r.key()?, {
            let ttl_ms = r.option(Reader::u64)?;
            Op::Set { value: r.blob()?, ttl_ms }
        }),
        kind::SET_NX => call(r.key()?, {
            let ttl_ms = r.option(Reader::u64)?;
            Op::SetNx { value: r.blob()?, ttl_ms }
        }),
        kind::APPEND => call(r.key()?, Op::Append { value: r.blob()? }),
        kind::CAS => call(r.key()?, {
            let ttl_ms = r.option(Reader::u64)?;
            Op::Cas { expected: r.option(Reader::blob)?, new: r.option(Reader::blob)?, ttl_ms }
        }),
        kind::DEL => call(r.key()?, Op::Del),
        kind::EXPIRE => call(r.key()?, Op::Expire { ttl_ms: r.option(Reader::u64)? }),
        kind::GET => call(r.key()?, Op::Get { bytes: r.flag()? }),
        kind::REPLICATE => Request::Replicate(Batch {
            position: r.u64()?,
            after: r.u64()?,
            copies: r.list(COPY_LEN_MIN, Reader::copy)?,
            applied: r.list(12, |r| Ok(AppliedIds { stream: r.u64()?, ids: ids(r)? }))?,
        }),
        kind::SYNC => Request::Sync { cursor: r.u64()?, slots: slots(r)?, owned: r.flag()?, wants: wants(r)? },
        kind::FETCH => Request::Fetch { older: r.flag()?, keys: r.list(KEY_LEN_MIN, Reader::key)? },
        kind::CLAIM => {
            let synced_to = r.u64()?;
            Request::Claim { slots: slots(r)?, synced_to }
        }
        kind::ANNOUNCE => Request::Announce { slots: slots(r)?, term: r.u64()? },
        kind::SHARE => Request::Share(shares(r)?),
        kind::REPLAY => Request::Replay(shares(r)?),
        kind::RESOLVE => Request::Resolve { stream: r.u64()?, ids: ids(r)?, of: (r.text()?, r.u64()?) },
        kind::STANDING => Request::Standing,
        kind::DIGEST => Request::Digest { small_max: r.u32()?, slots: r.list(10, slot_digest)? },
        kind::OFFER => Request::Offer(r.list(COPY_LEN_MIN, Reader::copy)?),
        kind::FLUSH => Request::Flush { namespace: r.blob()? },
        kind => return Err(WireError::UnknownType(kind)),
    };
    reader.end()?;
    Ok((id, request))
}

/// Appends `response` as a frame.
pub fn encode_response(id: u64, response: &Response, out: &mut BytesMut) {
    match response {
        Response::Pong { vouches } => encode_frame(kind::PONG, id, out, |out| out.put_u8((*vouches).into())),
        Response::Reply(reply) => encode_frame(kind::REPLY, id, out, |out| {
            put_outcome(out, &reply.outcome);
            put_option(out, reply.state.as_ref(), put_state);
            out.put_u8(reply.degraded.into());
        }),
        Response::NotOwner { owner, term } => encode_frame(kind::NOT_OWNER, id, out, |out| {
            put_option(out, owner.as_deref(), put_text);
            out.put_u64_le(*term);
        }),
        Response::Voided => encode_frame(kind::VOIDED, id, out, |_| ()),
        Response::Acked { position, full, vouches } => encode_frame(kind::ACKED, id, out, |out| {
            out.put_u64_le(*position);
            put_list(out, full, |out, place| out.put_u32_le(*place));
            out.put_u8((*vouches).into());
        }),
        Response::Page { copies, next } => encode_frame(kind::PAGE, id, out, |out| {
            put_list(out, copies, put_copy);
            put_option(out, *next, |out, next| out.put_u64_le(next));
        }),
        Response::Claimed { term, released, owners } => encode_frame(kind::CLAIMED, id, out, |out| {
            out.put_u64_le(*term);
            put_slots(out, released);
            put_list(out, owners, |out, owner| put_text(out, owner));
        }),
        Response::Announced { contested } => {
            encode_frame(kind::ANNOUNCED, id, out, |out| put_slots(out, contested));
        }
        Response::Done => encode_frame(kind::DONE, id, out, |_| ()),
        Response::Shares(shares) => {
            encode_frame(kind::SHARES, id, out, |out| put_list(out, shares, put_homecoming));
        }
        Response::Fates { fates, left } => encode_frame(kind::FATES, id, out, |out| {
            out.put_u8((*left).into());
            put_list(out, fates, |out, fate| {
                out.put_u8(match fate {
                    Fate::Applied => 0,
                    Fate::NotApplied => 1,
                    Fate::Unknown => 2,
                });
            });
        }),
        Response::Standing { together } => {
            encode_frame(kind::STANDING_IS, id, out, |out| out.put_u8((*together).into()))
        }
        Response::Error(text) => encode_frame(kind::ERROR, id, out, |out| put_text(out, text)),
    }
}

/// The response in `frame`, with the id of its request. Byte values share the frame's buffer.
///
/// Errors: every [`WireError`] but those of frames.
pub fn decode_response(frame: Frame) -> Result<(u64, Response), WireError> {
    let (kind, id) = (frame.kind, frame.id);
    let mut reader = Reader::new(frame);
    let r = &mut reader;
    let response = match kind {
        kind::PONG => Response::Pong { vouches: r.flag()? },
        kind::REPLY => {
            Response::Reply(Reply { outcome: outcome(r)?, state: r.option(Reader::state)?, degraded: r.flag()? })
        }
        kind::NOT_OWNER => Response::NotOwner { owner: r.option(Reader::text)?, term: r.u64()? },
        kind::VOIDED => Response::Voided,
        kind::ACKED => Response::Acked { position: r.u64()?, full: r.list(4, Reader::u32)?, vouches: r.flag()? },
        kind::PAGE => Response::Page { copies: r.list(COPY_LEN_MIN, Reader::copy)?, next: r.option(Reader::u64)? },
        kind::CLAIMED => Response::Claimed { term: r.u64()?, released: slots(r)?, owners: r.list(2, Reader::text)? },
        kind::ANNOUNCED => Response::Announced { contested: slots(r)? },
        kind::DONE => Response::Done,
        kind::SHARES => {
            let mut count = 0;
            Response::Shares(r.list(1, |r| {
                count += 1;
                if count > SHARES_MAX { Err(r.invalid("number of shares")) } else { homecoming(r) }
            })?)
        }
        kind::FATES => {
            let left = r.flag()?;
            let fates = r.list(1, |r| match r.u8()? {
                0 => Ok(Fate::Applied),
                1 => Ok(Fate::NotApplied),
                2 => Ok(Fate::Unknown),
                _ => Err(r.invalid("fate")),
            })?;
            Response::Fates { fates, left }
        }
        kind::STANDING_IS => Response::Standing { together: r.flag()? },
        kind::ERROR => Response::Error(r.text()?),
        kind => return Err(WireError::UnknownType(kind)),
    };
    reader.end()?;
    Ok((id, response))
}

fn call(key: KeyBuf, op: Op) -> Request {
    Request::Call(Call { key, op })
}

fn slot_digest(r: &mut Reader) -> Result<(u16, u64), WireError> {
    Ok((r.u16()?, r.u64()?))
}

fn put_ids(out: &mut BytesMut, ids: &[u64]) {
    put_list(out, ids, |out, id| out.put_u64_le(*id));
}

fn ids(r: &mut Reader) -> Result<Vec<u64>, WireError> {
    r.list(8, Reader::u64)
}

fn shares(r: &mut Reader) -> Result<Vec<Copy>, WireError> {
    let copies = r.list(COPY_LEN_MIN, Reader::copy)?;
    if copies.len() > SHARES_MAX {
        return Err(r.invalid("number of shares"));
    }
    Ok(copies)
}

fn put_slots(out: &mut BytesMut, slots: &[SlotRange]) {
    put_list(out, slots, |out, range| {
        out.put_u16_le(range.first);
        out.put_u16_le(range.count);
    });
}

fn slots(r: &mut Reader) -> Result<Vec<SlotRange>, WireError> {
    r.list(4, |r| {
        let range = SlotRange { first: r.u16()?, count: r.u16()? };
        // Which slots exist is the placement's business; a run that is empty or wraps around is nobody's.
        match range.first.checked_add(range.count) {
            Some(end) if end > range.first => Ok(range),
            _ => Err(r.invalid("slot range")),
        }
    })
}

fn put_wants(out: &mut BytesMut, wants: Option<&Wants>) {
    match wants {
        None => out.put_u8(0),
        Some(Wants::All) => out.put_u8(1),
        Some(Wants::Slots(slots)) => {
            out.put_u8(2);
            put_slots(out, slots);
        }
    }
}

fn wants(r: &mut Reader) -> Result<Option<Wants>, WireError> {
    match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(Wants::All)),
        2 => Ok(Some(Wants::Slots(slots(r)?))),
        _ => Err(r.invalid("wants")),
    }
}

fn put_outcome(out: &mut BytesMut, outcome: &Outcome) {
    match outcome {
        Outcome::Values(values) => {
            out.put_u8(0);
            put_list(out, values, |out, value| match value {
                Ok(value) => {
                    out.put_u8(0);
                    out.put_i64_le(*value);
                }
                Err(refusal) => {
                    out.put_u8(1);
                    out.put_u8(refusal.code());
                }
            });
        }
        Outcome::Done(done) => {
            out.put_u8(1);
            out.put_u8((*done).into());
        }
        Outcome::Refused(refusal) => {
            out.put_u8(2);
            out.put_u8(refusal.code());
        }
    }
}

fn outcome(r: &mut Reader) -> Result<Outcome, WireError> {
    match r.u8()? {
        0 => Ok(Outcome::Values(r.list(2, |r| {
            Ok(match r.flag()? {
                false => Ok(r.i64()?),
                true => Err(r.refusal()?),
            })
        })?)),
        1 => Ok(Outcome::Done(r.flag()?)),
        2 => Ok(Outcome::Refused(r.refusal()?)),
        _ => Err(r.invalid("outcome")),
    }
}

fn put_homecoming(out: &mut BytesMut, homecoming: &Homecoming) {
    match homecoming {
        Homecoming::Merged(state) => {
            out.put_u8(0);
            put_state(out, state);
        }
        Homecoming::Ended(state) => {
            out.put_u8(1);
            put_option(out, state.as_ref(), put_state);
        }
        Homecoming::NotOwner => out.put_u8(2),
        Homecoming::Full => out.put_u8(3),
    }
}

fn homecoming(r: &mut Reader) -> Result<Homecoming, WireError> {
    match r.u8()? {
        0 => Ok(Homecoming::Merged(r.state()?)),
        1 => Ok(Homecoming::Ended(r.option(Reader::state)?)),
        2 => Ok(Homecoming::NotOwner),
        3 => Ok(Homecoming::Full),
        _ => Err(r.invalid("homecoming")),
    }
}

#[cfg(test)]
mod tests;
