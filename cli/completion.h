// The verbs of `tutti` for completion scripts and for "did you mean". Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::cli {

struct Verb {
  std::string_view name;
  std::string_view words;  // what may follow: sub-commands and options
  bool takes_file;         // a job file or a folder may follow too
};
std::span<const Verb> Verbs();
std::vector<std::string> VerbNames();

// A script that bash or zsh evaluates; "" for another shell.
std::string CompletionScript(std::string_view shell);

}  // namespace tutti::cli
