// tutti: the command line. Only wires flags to verbs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "base/process.h"
#include "cli/completion.h"
#include "cli/exit_codes.h"
#include "cli/verbs.h"
#include "job/schema.h"

namespace tutti::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done (run: the job succeeded), 1 it failed, 2 the job file or the command line is wrong, 3 it can "
    "never run here,\n"
    "            4 cancelled, 5 no coordinator reached, 6 not allowed, 130 interrupted (run: the job is cancelled; "
    "submit --follow: it goes on).\n"
    "Environment: TUTTI_COORDINATOR (HOST:PORT or unix:PATH), TUTTI_TOKEN_FILE, NO_COLOR.";

struct VerbSpec {
  const char* name;
  const char* summary;
  const char* examples;
  std::function<int(const Options&)> call;
  bool file = false, coordinator = false;
};

void AddFlags(CLI::App* verb, const VerbSpec& spec, Options* options) {
  const std::string name = spec.name;
  if (spec.file) {
    verb->add_option("FILE", options->file, "job file")->required();
    verb->add_option("--set", options->overrides, "section.key=value: beats the file; may be given again")
        ->allow_extra_args(false);
  }
  if (spec.coordinator) {
    verb->add_option("--coordinator", options->coordinator, "HOST:PORT or unix:PATH (default: TUTTI_COORDINATOR)");
    verb->add_option("--token-file", options->token_file,
                     "file that holds the coordinator's token (default: TUTTI_TOKEN_FILE)");
  }
  if (name != "explain" && name != "schema" && name != "completion" && name != "logs") {
    verb->add_option("-o,--output", options->output, "json, yaml or wide")
        ->check(CLI::IsMember({"json", "yaml", "wide"}));
  }
  if (name == "run" || name == "submit")
    verb->add_flag("--resume", options->resume, "go on from the newest checkpoint (checkpoint.resume: auto)");
  if (name == "submit") {
    verb->add_option("--uid", options->uid, "key of idempotent creation: the same one returns the same job");
    verb->add_flag("--follow", options->follow, "show progress until the job ends; Ctrl-C only stops following");
    verb->add_flag("--dry-run", options->dry_run, "plan and check, change nothing");
  }
  if (name == "get" || name == "describe")
    verb->add_option("KIND", options->kind, name == "get" ? "jobs or nodes" : "job or node")->required();
  if (name == "get") {
    verb->add_option("NAME", options->names, "only these");
    verb->add_option("--filter", options->filter, "state=RUNNING,name=x,label.team=vision");
    verb->add_option("--limit", options->limit, "at most so many jobs")
        ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
    verb->add_flag("-w,--watch", options->watch, "go on with each change");
  }
  if (name == "describe" || name == "logs")
    verb->add_option("NAME", options->name, "id, unique beginning of one, or name (the newest)")->required();
  if (name == "verify")
    verb->add_option("JOB", options->name, "a run folder, a step folder, or a job of the coordinator")->required();
  if (name == "cancel") {
    verb->add_option("JOB", options->names, "id, unique beginning of one, or name (the newest)")->required();
    verb->add_flag("--force", options->force, "without a checkpoint first");
  }
  if (name == "logs") {
    verb->add_flag("-f,--follow", options->follow, "go on until the job ends, over restarts of ranks and coordinator");
    verb->add_option("--rank", options->rank, "of which rank (default 0)")->check(CLI::NonNegativeNumber);
    verb->add_option("--attempt,--generation", options->attempt, "of which attempt (default: the newest)")
        ->check(CLI::NonNegativeNumber);
    verb->add_option("--tail-bytes", options->tail_bytes, "begin so many bytes before the end")
        ->check(CLI::NonNegativeNumber);
  }
  if (name == "explain")
    verb->add_option("KEY", options->name, "spec.optimizer, spec.train.epochs, ...; none: the whole file");
  if (name == "completion") verb->add_option("SHELL", options->name, "bash or zsh")->required();
}

std::vector<VerbSpec> VerbSpecs() {
  return {
      {"run", "Train a job on this machine: starts all it needs, shows progress, leaves nothing running.",
       "  tutti run job.yaml\n  tutti run job.yaml --set train.epochs=5 --set resources.ranks=4\n  tutti run job.yaml "
       "--resume\n"
       "  tutti run job.yaml -o json     nothing but one JSON object with the result at the end\n"
       "Ctrl-C: the job writes a checkpoint and is cancelled; a second one kills it. Logs of a failed run stay in\n"
       "${XDG_STATE_HOME:-~/.local/state}/tutti/failed-*, the newest ten.",
       RunVerb, true, false},
      {"plan", "Say what a job will need, without starting anything.",
       "  tutti plan job.yaml\n  tutti plan job.yaml -o wide     with the layers", PlanVerb, true, true},
      {"config", "Print the effective job file and where each value comes from.",
       "  tutti config job.yaml --set optimizer.learningRate=0.1", ConfigVerb, true, false},
      {"explain", "Explain the keys of the job file.", "  tutti explain spec.optimizer", ExplainVerb, false, false},
      {"schema", "Print the JSON Schema of the job file.", "  tutti schema > tutti-job.schema.json", SchemaVerb, false,
       false},
      {"submit", "Give a job to the coordinator.",
       "  tutti submit job.yaml\n  tutti submit job.yaml --follow\n  tutti submit job.yaml --uid nightly-2024-05-01",
       SubmitVerb, true, true},
      {"get", "List jobs or nodes.",
       "  tutti get jobs\n  tutti get jobs --filter state=RUNNING -o wide\n  tutti get job NAME -o json\n  tutti get "
       "nodes",
       GetVerb, false, true},
      {"describe", "Tell all about one job or node: why it waits, why it failed, what to try.",
       "  tutti describe job NAME\n  tutti describe node NAME", DescribeVerb, false, true},
      {"logs", "Print the output of a rank.", "  tutti logs -f NAME\n  tutti logs NAME --rank 3 --attempt 1", LogsVerb,
       false, true},
      {"cancel", "End jobs after a checkpoint. Harmless when repeated.", "  tutti cancel NAME", CancelVerb, false,
       true},
      {"verify", "Prove from checkpoints and data that each epoch read each sample exactly once.",
       "  tutti verify runs/cnn-fashion-mnist\n  tutti verify NAME", VerifyVerb, false, true},
      {"nodes", "The same as get nodes.", "  tutti nodes -o wide",
       [](const Options& given) {
         Options options = given;
         options.kind = "nodes";
         return GetVerb(options);
       },
       false, true},
      {"version", "Print the version, and the coordinator's where one is named.", "  tutti version", VersionVerb, false,
       true},
      {"completion", "Print a completion script.",
       "  source <(tutti completion bash)\n  source <(tutti completion zsh)", CompletionVerb, false, false},
  };
}

int UnknownVerb(const std::string& word) {
  const std::string near = schema::NearestWord(word, VerbNames());
  fmt::print(stderr, "tutti: unknown verb '{}'{}; `tutti --help` lists them\n", word,
             near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  return kUsage;
}

// CLI11 reports what is missing before what it does not know, and knows no "did you mean".
int CheckOptions(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return kSucceeded;
  const CLI::App* verb = app.get_subcommand(std::string(argv[1]));
  std::vector<std::string> known;
  for (const CLI::Option* option : verb->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (int i = 2; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string name = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (!name.starts_with("--") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = schema::NearestWord(name, known);
    fmt::print(stderr, "tutti: unknown option '{}' of tutti {}{}\n", name, argv[1],
               near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
    return kUsage;
  }
  return kSucceeded;
}

int Main(int argc, char** argv) {
  CLI::App app("Trains neural networks on many machines as if they were one.", "tutti");
  app.require_subcommand(1);
  app.footer(kExitCodes);
  app.set_version_flag("--version", TUTTI_VERSION);
  Options options;
  const std::vector<VerbSpec> verbs = VerbSpecs();
  for (const VerbSpec& spec : verbs) {
    CLI::App* verb = app.add_subcommand(spec.name, spec.summary);
    AddFlags(verb, spec, &options);
    verb->footer(fmt::format("Examples:\n{}\n{}", spec.examples, kExitCodes));
  }
  const std::vector<std::string> names = VerbNames();
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end())
    return UnknownVerb(argv[1]);
  if (const int code = CheckOptions(app, argc, argv); code != kSucceeded) return code;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSucceeded : kUsage;
  }
  for (const VerbSpec& spec : verbs)
    if (app.got_subcommand(spec.name)) return spec.call(options);
  return kUsage;
}

}  // namespace
}  // namespace tutti::cli

int main(int argc, char** argv) { return tutti::cli::Main(argc, argv); }
