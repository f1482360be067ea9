use neap_lab::experiments::small_queues::*;
fn main(){ println!("{INTRODUCTION}\n\n{HEADER}"); let r=run_all(1,|r|println!("{r}")).unwrap(); for v in r.verdicts {println!("{v}");} println!("{}", r.hash);}
