#include "cli/tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/report.h"
#include "cli/text.h"

namespace tutti::cli {
namespace {

std::string Age(int64_t from_unix_ms, int64_t now_unix_ms) {
  if (from_unix_ms <= 0) return "-";
  const int64_t seconds = std::max<int64_t>(0, now_unix_ms - from_unix_ms) / 1000;
  if (seconds < 120) return fmt::format("{}s", seconds);
  if (seconds < 7200) return fmt::format("{}m", seconds / 60);
  if (seconds < 172'800) return fmt::format("{}h", seconds / 3600);
  return fmt::format("{}d", seconds / 86'400);
}

std::string NodeStateWord(v1::NodeState state) {
  const std::string name = v1::NodeState_Name(state);
  return name.starts_with("NODE_STATE_") ? name.substr(11) : "UNKNOWN";
}

std::string RankWords(const v1::RankStatus& rank) {
  std::string state = v1::RankState_Name(rank.state());
  if (state.starts_with("RANK_STATE_")) state = state.substr(11);
  if (rank.state() != v1::RANK_STATE_EXITED) return state;
  if (rank.signal() != 0) return fmt::format("{} by signal {}", state, rank.signal());
  return fmt::format("{} with code {}", state, rank.exit_code());
}

std::string RankNotes(const v1::RankStatus& rank) {
  std::string text = rank.victim() ? "victim" : rank.stopped_by_us() ? "stopped by us" : "";
  if (!rank.message().empty()) text += fmt::format("{}{}", text.empty() ? "" : ": ", Printable(rank.message()));
  return text;
}

void Field(std::string_view name, const std::string& value, std::string* out) {
  if (!value.empty()) *out += fmt::format("{:<12}{}\n", name, value);
}

std::string Steps(const v1::Job& job) {
  const int64_t total = job.status().plan().steps();
  const int64_t done = std::max(job.status().completed_step(), job.status().last_step().step());
  return total > 0 ? fmt::format("{}/{}", WithCommas(done), WithCommas(total)) : WithCommas(done);
}

std::string Nodes(const v1::Job& job) {
  std::string text;
  for (const auto& share : job.status().assignment().nodes())
    text += fmt::format("{}{}", text.empty() ? "" : ",", share.node());
  return text;
}

}  // namespace

std::string JobsTable(const std::vector<v1::Job>& jobs, int64_t now_unix_ms, bool wide) {
  std::vector<std::vector<std::string>> rows = {{"ID", "NAME", "STATE", "STEP", "RANKS", "ATTEMPTS", "AGE"}};
  if (wide) rows[0].insert(rows[0].end(), {"NODES", "DURABLE", "REASON"});
  for (const v1::Job& job : jobs) {
    rows.push_back({job.id(), job.spec().metadata().name(), StateWord(job.status().state()), Steps(job),
                    fmt::to_string(job.spec().resources().ranks()), fmt::to_string(job.status().attempts()),
                    Age(job.create_unix_ms(), now_unix_ms)});
    if (wide)
      rows.back().insert(rows.back().end(),
                         {Nodes(job), WithCommas(job.status().durable_step()), Printable(job.status().reason())});
  }
  return jobs.empty() ? "no jobs\n" : Table(rows);
}

std::string NodesTable(const std::vector<v1::Node>& nodes, int64_t now_unix_ms, bool wide) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "STATE", "SLOTS", "FREE", "MEMORY", "SEEN"}};
  if (wide) rows[0].insert(rows[0].end(), {"ADDRESS", "INSTRUCTIONS", "PROCESSOR", "VERSION"});
  for (const v1::Node& node : nodes) {
    const auto free = std::count_if(node.slots().begin(), node.slots().end(), [](const v1::Slot& slot) {
      return slot.job_id().empty() && !slot.locked_elsewhere();
    });
    rows.push_back({node.name(), NodeStateWord(node.state()), fmt::to_string(node.slots_size()), fmt::to_string(free),
                    MemoryText(node.memory_bytes()), Age(node.last_seen_unix_ms(), now_unix_ms)});
    if (wide)
      rows.back().insert(rows.back().end(),
                         {node.address(), node.instruction_set(), Printable(node.processor()), node.version()});
  }
  return nodes.empty() ? "no nodes\n" : Table(rows);
}

std::string DescribeJob(const v1::Job& job, int64_t now_unix_ms) {
  const v1::JobStatus& status = job.status();
  std::string out;
  Field("Name", job.spec().metadata().name(), &out);
  Field("Id", job.id(), &out);
  std::string labels;
  for (const auto& [key, value] : std::map<std::string, std::string>(job.spec().metadata().labels().begin(),
                                                                     job.spec().metadata().labels().end())) {
    labels += fmt::format("{}{}={}", labels.empty() ? "" : ",", key, value);
  }
  Field("Labels", labels, &out);
  const std::string why = !status.wait_reason().empty() ? status.wait_reason() : status.message();
  Field("State",
        fmt::format("{} for {}{}", StateWord(status.state()),
                    Age(IsTerminal(status.state()) ? status.end_unix_ms() : job.create_unix_ms(), now_unix_ms),
                    why.empty() ? "" : ": " + Printable(why)),
        &out);
  if (status.cancel_requested() && !IsTerminal(status.state())) Field("Cancel", "requested", &out);
  Field("Progress",
        fmt::format("step {}, durable {}, attempt {} (generation {})", Steps(job), WithCommas(status.durable_step()),
                    status.attempts(), status.generation()),
        &out);
  if (status.has_last_step()) Field("Loss", Significant(status.last_step().loss()), &out);
  if (status.has_evaluation()) {
    Field("Evaluation",
          fmt::format("accuracy {:.4f}, loss {} after step {}", status.evaluation().accuracy(),
                      Significant(status.evaluation().loss()), WithCommas(status.evaluation().step())),
          &out);
  }
  Field("Checkpoint", status.latest_checkpoint(), &out);
  Field("Weights", status.weights_sha256(), &out);
  Field("Restarts",
        fmt::format("{} of {} after failures of ranks, {} of {} after lost nodes", status.user_failures(),
                    job.spec().restart().max_user_failures(), status.node_failures(),
                    job.spec().restart().max_node_failures()),
        &out);
  for (const std::string& reason : status.assignment().reasons()) Field("Placed", Printable(reason), &out);
  if (status.ranks_size() > 0) {
    std::vector<std::vector<std::string>> rows = {{"RANK", "NODE", "GENERATION", "STATE", "CORES", ""}};
    for (const v1::RankStatus& rank : status.ranks()) {
      std::string cores;
      for (const int32_t core : rank.cores()) cores += fmt::format("{}{}", cores.empty() ? "" : ",", core);
      rows.push_back({fmt::to_string(rank.rank()), rank.node(), fmt::to_string(rank.generation()), RankWords(rank),
                      cores, RankNotes(rank)});
    }
    out += "\n" + Table(rows);
  }
  for (const v1::Condition& condition : status.conditions()) {
    Field(condition.type(),
          fmt::format("{}{}", condition.status() ? "yes" : "no",
                      condition.message().empty() ? "" : ": " + Printable(condition.message())),
          &out);
  }
  if (status.has_plan()) out += "\n" + PlanBlock(job.spec(), status.plan(), 0);
  for (const v1::Failure& failure : status.failures()) out += "\n" + FailureBlock(job, failure);
  return out;
}

std::string DescribeNode(const v1::Node& node, int64_t now_unix_ms) {
  std::string out;
  Field("Name", node.name(), &out);
  Field("State",
        fmt::format("{}, seen {} ago{}", NodeStateWord(node.state()), Age(node.last_seen_unix_ms(), now_unix_ms),
                    node.message().empty() ? "" : ": " + Printable(node.message())),
        &out);
  Field("Address", node.address(), &out);
  Field("Processor", fmt::format("{} ({})", Printable(node.processor()), node.instruction_set()), &out);
  Field("Memory", MemoryText(node.memory_bytes()), &out);
  Field("Version", node.version(), &out);
  std::vector<std::vector<std::string>> rows = {{"SLOT", "CORES", "MEMORY", "HELD BY"}};
  for (const v1::Slot& slot : node.slots()) {
    std::string cores;
    for (const int32_t core : slot.cores()) cores += fmt::format("{}{}", cores.empty() ? "" : ",", core);
    rows.push_back({slot.id(), cores, MemoryText(slot.memory_bytes()),
                    !slot.job_id().empty()    ? slot.job_id()
                    : slot.locked_elsewhere() ? "another program"
                                              : "-"});
  }
  return out + "\n" + Table(rows);
}

}  // namespace tutti::cli
