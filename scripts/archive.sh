# Sourced by scripts that need packages of Debian's main archive which this machine does not install. Nothing of the
# machine's own configuration is changed.

archive() { # prints where this machine gets Debian's packages from, and its release
    local targets
    targets() {
        apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' 'Component: main'
    }
    [[ -n $(targets) ]] || apt-get update -qq >&2
    targets | awk '$2 !~ /-/ && !done++'
}

archive_apt() { # archive_apt FOLDER TYPE RELEASE: sets the array `apt` to options for apt-get and apt-cache
    local folder=$1 type=$2 release=$3 address
    read -r address _ < <(archive)
    mkdir -p "$folder/lists/partial"
    echo "$type [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $address $release main" \
        >"$folder/sources.list"
    apt=(-qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3)
    apt-get "${apt[@]}" update >&2
}
