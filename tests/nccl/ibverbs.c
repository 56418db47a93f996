/* A libibverbs.so.1 that lists made devices, for the real libnccl to look at; no packet leaves it.
 *
 * $MADE_RDMA names a text file: "device NAME CHIP", then for each port "port STATE LAYER GIDS", and "gid INDEX HEX" for
 * each entry of its table that is not empty. Layouts of structures: rdma-core's libibverbs/verbs.h, IBVERBS_1.1.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 64, PORTS = 4, ENTRIES = 64 };

struct device {
  void *ops[2];
  int node_type, transport_type;
  char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
struct context {
  struct device *device;
  void *ops[32];
  int cmd_fd, async_fd, num_comp_vectors;
  char mutex[64];
  void *abi_compat;
};
struct port_attr {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer;
};
struct device_attr {
  char fw_ver[64];
  uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned int device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom;
  int max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp;
  int max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr;
  int max_srq, max_srq_wr, max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
};

static struct made {
  struct device device;
  uint64_t chip;
  int ports;
  struct { int state, layer, gids, entries; struct { int index; uint8_t gid[16]; } entry[ENTRIES]; } port[PORTS];
} made[DEVICES];
static int count;

static void read_devices(void) {
  FILE *file = fopen(getenv("MADE_RDMA") ? getenv("MADE_RDMA") : "", "r");
  char line[256], text[64];
  count = 0;
  memset(made, 0, sizeof made);
  while (file && fgets(line, sizeof line, file)) {
    struct made *last = count ? &made[count - 1] : NULL;
    int a, b, c;
    unsigned long long chip;
    if (sscanf(line, "device %63s %llx", text, &chip) == 2 && count < DEVICES) {
      last = &made[count++];
      strcpy(last->device.name, text);
      last->chip = chip;
    } else if (last && sscanf(line, "port %d %d %d", &a, &b, &c) == 3 && last->ports < PORTS) {
      last->port[last->ports].state = a, last->port[last->ports].layer = b, last->port[last->ports++].gids = c;
    } else if (last && last->ports && sscanf(line, "gid %d %32s", &a, text) == 2) {
      int port = last->ports - 1, at = last->port[port].entries;
      if (at == ENTRIES) continue;
      last->port[port].entry[at].index = a;
      for (int i = 0; i < 16; i++) sscanf(text + 2 * i, "%2hhx", &last->port[port].entry[at].gid[i]);
      last->port[port].entries++;
    }
  }
  if (file) fclose(file);
}

struct device **ibv_get_device_list(int *number) {
  read_devices();
  struct device **list = calloc(count + 1, sizeof *list);
  for (int i = 0; i < count; i++) list[i] = &made[i].device;
  if (number) *number = count;
  return list;
}
void ibv_free_device_list(struct device **list) { free(list); }
const char *ibv_get_device_name(struct device *device) { return device->name; }
int ibv_fork_init(void) { return 0; }

struct context *ibv_open_device(struct device *device) {
  struct context *context = calloc(1, sizeof *context);
  context->device = device;
  return context;
}
int ibv_close_device(struct context *context) { free(context); return 0; }

int ibv_query_device(struct context *context, struct device_attr *attr) {
  struct made *one = (struct made *)context->device;
  memset(attr, 0, sizeof *attr);
  attr->sys_image_guid = attr->node_guid = one->chip;
  attr->phys_port_cnt = one->ports, attr->max_qp = 1 << 17, attr->max_mr = 1 << 20, attr->max_qp_wr = 1 << 15;
  return 0;
}
int ibv_query_port(struct context *context, uint8_t number, struct port_attr *attr) {
  struct made *one = (struct made *)context->device;
  if (number < 1 || number > one->ports) return EINVAL;
  attr->state = one->port[number - 1].state, attr->link_layer = one->port[number - 1].layer;
  attr->gid_tbl_len = one->port[number - 1].gids, attr->pkey_tbl_len = 1, attr->lid = number;
  attr->max_mtu = attr->active_mtu = 5, attr->active_speed = 32, attr->active_width = 2;
  return 0;
}
int ibv_query_gid(struct context *context, uint8_t number, int index, uint8_t *gid) {
  struct made *one = (struct made *)context->device;
  if (number < 1 || number > one->ports || index < 0 || index >= one->port[number - 1].gids) return -1;
  memset(gid, 0, 16);
  for (int i = 0; i < one->port[number - 1].entries; i++)
    if (one->port[number - 1].entry[i].index == index) memcpy(gid, one->port[number - 1].entry[i].gid, 16);
  return 0;
}
int ibv_query_pkey(struct context *context, uint8_t number, int index, uint16_t *pkey) {
  (void)context, (void)number, (void)index;
  return *pkey = 0xffff, 0;
}
int ibv_get_async_event(struct context *context, void *event) {
  (void)context, (void)event;
  for (;;) pause();
}
const char *ibv_event_type_str(int event) { return (void)event, "made"; }

/* A connection needs these, and none is ever made; libnccl asks for all of them before it looks at a device. */
#define ABSENT(name) void *name(void) { return NULL; }
ABSENT(ibv_ack_async_event) ABSENT(ibv_alloc_pd) ABSENT(ibv_create_cq) ABSENT(ibv_create_qp) ABSENT(ibv_dealloc_pd)
ABSENT(ibv_dereg_mr) ABSENT(ibv_destroy_cq) ABSENT(ibv_destroy_qp) ABSENT(ibv_modify_qp) ABSENT(ibv_query_qp)
ABSENT(ibv_reg_mr)
