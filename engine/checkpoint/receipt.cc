#include "engine/checkpoint/receipt.h"

#include <nlohmann/json.hpp>

namespace tutti {

std::string FormatReceipt(const Receipt& receipt) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const TensorDigest& t : receipt.tensors) {
    tensors.push_back({{"name", t.name}, {"role", t.role}, {"shape", t.shape}, {"sha256", t.sha256}});
  }
  return nlohmann::json{{"file", receipt.file}, {"bytes", receipt.bytes}, {"xxh3", receipt.xxh3}, {"tensors", tensors}}
             .dump() +
         "\n";
}

StatusOr<Receipt> ParseReceipt(const std::string& json, const std::string& path) {
  const nlohmann::json root = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto is = [](const nlohmann::json& object, const char* key, auto test) {
    return object.is_object() && object.contains(key) && (object[key].*test)();
  };
  using Json = nlohmann::json;
  const Status bad = DataLoss("{} is no receipt of a rank", path);
  if (!is(root, "file", &Json::is_string) || !is(root, "bytes", &Json::is_number_integer) ||
      !is(root, "xxh3", &Json::is_number_unsigned) || !is(root, "tensors", &Json::is_array)) {
    return bad;
  }
  Receipt receipt{.file = root["file"], .bytes = root["bytes"], .xxh3 = root["xxh3"], .tensors = {}};
  for (const Json& t : root["tensors"]) {
    if (!is(t, "name", &Json::is_string) || !is(t, "role", &Json::is_number_integer) ||
        !is(t, "shape", &Json::is_array) || !is(t, "sha256", &Json::is_string) ||
        t["sha256"].get<std::string>().size() != 64) {
      return bad;
    }
    TensorDigest digest{.name = t["name"], .role = t["role"], .shape = {}, .sha256 = t["sha256"]};
    for (const Json& dim : t["shape"]) {
      if (!dim.is_number_integer()) return bad;
      digest.shape.push_back(dim);
    }
    receipt.tensors.push_back(std::move(digest));
  }
  return receipt;
}

}  // namespace tutti
