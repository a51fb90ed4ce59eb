// Links to a scenario at the root of the site, from before the table was there.
if (/[?&](model|gpu|engine|drafter|acceptance|batch|context|gpu_hour_price|vs)=/.test(location.search)) location.replace(`explore/${location.search}`);
