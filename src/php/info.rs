//! What `ephpm_kv_info()` and phpinfo say.

use ext_php_rs::boxed::ZBox;
use ext_php_rs::convert::IntoZval;
use ext_php_rs::error::Result;
use ext_php_rs::ffi::{php_info_print_table_end, php_info_print_table_row, php_info_print_table_start};
use ext_php_rs::types::ZendHashTable;
use ext_php_rs::zend::ModuleEntry;

use super::ffi;
use super::text::Text;
use crate::bridge::{Info, MemberInfo};

/// The version of the module.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The array that `ephpm_kv_info()` returns.
pub fn as_array(info: &Info) -> Result<ZBox<ZendHashTable>> {
    let mut array = ZendHashTable::with_capacity(16);
    array.insert("version", VERSION)?;
    array.insert("state", info.state)?;
    array.insert("reason", info.reason.as_str())?;
    array.insert("node_id", info.node_id.as_str())?;
    array.insert("node_pid", i64::from(info.node_pid))?;
    array.insert("clustered", info.clustered)?;
    array.insert("epoch", signed(info.epoch))?;
    let mut members = ZendHashTable::with_capacity(info.members.len() as u32);
    for member in &info.members {
        members.push(member_array(member)?)?;
    }
    array.insert("members", members.into_zval(false)?)?;
    array.insert("entries", signed(info.entries))?;
    array.insert("memory_used", signed(info.memory_used))?;
    array.insert("memory_total", signed(info.memory_total))?;
    array.insert("layout", i64::from(info.layout))?;
    array.insert("protocol", i64::from(info.protocol))?;
    array.insert("origin", info.origin.as_str())?;
    Ok(array)
}

fn member_array(member: &MemberInfo) -> Result<ZBox<ZendHashTable>> {
    let mut array = ZendHashTable::with_capacity(8);
    array.insert("node_id", member.node_id.as_str())?;
    array.insert("address", member.address.as_str())?;
    array.insert("live", member.live)?;
    array.insert("owner_slots", i64::from(member.owner_slots))?;
    array.insert("client", member.client)?;
    Ok(array)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Prints the module's part of phpinfo.
pub fn print(info: &Info, module: *mut ModuleEntry) {
    // SAFETY: PHP is printing its info; these calls bracket the rows.
    unsafe { php_info_print_table_start() };
    row(c"ephpm_kv", format_args!("{VERSION}"));
    row(c"State", format_args!("{}", info.state));
    row(c"Reason", format_args!("{}", info.reason));
    row(c"Node", format_args!("{}", info.node_id));
    row(c"Node process", format_args!("{}", info.node_pid));
    for member in &info.members {
        let state = if member.live { "live" } else { "dead" };
        let role = if member.client { "client" } else { "member" };
        let MemberInfo { node_id, address, owner_slots, .. } = member;
        row(c"Member", format_args!("{node_id} at {address}: {state}, {role}, owns {owner_slots} slots"));
    }
    row(c"Entries", format_args!("{}", info.entries));
    row(c"Memory", format_args!("{} of {} bytes", info.memory_used, info.memory_total));
    row(c"Segment layout", format_args!("{}", info.layout));
    row(c"Protocol", format_args!("{}", info.protocol));
    // SAFETY: as above; `module` is this module's entry, which PHP passed.
    unsafe {
        php_info_print_table_end();
        ffi::display_ini_entries(module);
    }
}

fn row(name: &'static std::ffi::CStr, value: std::fmt::Arguments<'_>) {
    let value = Text::<512>::new(value);
    // SAFETY: two columns, both C strings.
    unsafe { php_info_print_table_row(2, name.as_ptr(), value.as_ptr()) };
}
